-- agentspec in Neovim 0.11 or newer, through `agentspec lsp`. Copy it to ~/.config/nvim/plugin/agentspec.lua.
--
--   :AgentspecEdit INSTRUCTION       change the whole buffer; with a range only those lines
--   <Tab> in insert mode             take the suggestion (Neovim 0.12 or newer)

vim.lsp.config('agentspec', {
  cmd = { 'agentspec', 'lsp' },
  root_markers = { '.git' },
})
vim.lsp.enable('agentspec')

local function client_of(buffer)
  return vim.lsp.get_clients({ name = 'agentspec', bufnr = buffer })[1]
end

vim.api.nvim_create_user_command('AgentspecEdit', function(command)
  local buffer = vim.api.nvim_get_current_buf()
  local client = client_of(buffer)
  if not client then
    vim.notify('agentspec is not attached to this buffer', vim.log.levels.ERROR)
    return
  end
  local target = { uri = vim.uri_from_bufnr(buffer), instruction = command.args }
  if command.range > 0 then
    target.range = {
      start = { line = command.line1 - 1, character = 0 },
      ['end'] = { line = command.line2, character = 0 },
    }
  end
  client:exec_cmd({ title = 'edit', command = 'agentspec.edit', arguments = { target } }, { bufnr = buffer }, function(err, result)
    if err or not result.applied then
      vim.notify('agentspec: ' .. (err and err.message or result.reason), vim.log.levels.WARN)
    end
  end)
end, { nargs = '+', range = true, desc = 'Edit with agentspec' })

-- Neovim shows suggestions of language servers itself since 0.12.
if vim.lsp.inline_completion then
  vim.api.nvim_create_autocmd('LspAttach', {
    callback = function(event)
      local client = vim.lsp.get_client_by_id(event.data.client_id)
      if client and client.name == 'agentspec' then
        vim.lsp.inline_completion.enable(true, { bufnr = event.buf })
      end
    end,
  })
  vim.keymap.set('i', '<Tab>', function()
    if not vim.lsp.inline_completion.get() then
      return '<Tab>'
    end
  end, { expr = true, desc = 'Take the suggestion' })
end
