/** The entry that adds the served model to VS Code's own chat. Knows nothing of VS Code. */

/** Name of the file of custom endpoints, in the user's settings folder. */
export const FILE_NAME = "chatLanguageModels.json";

const NAME = "agentspec";

/** The custom endpoint for a server. */
export function modelEntry(root: string, model: string, contextLength: number): object {
  const output = Math.floor(contextLength / 2);
  return {
    name: NAME,
    vendor: "customendpoint",
    apiType: "chat-completions",
    models: [
      {
        id: model,
        name: `${model} (agentspec)`,
        url: `${root}/v1/chat/completions`,
        toolCalling: true,
        vision: false,
        maxInputTokens: contextLength - output,
        maxOutputTokens: output,
      },
    ],
  };
}

/**
 * The text of the file with `entry` in it; another entry of ours is replaced, its key kept, and all others stay.
 *
 * @throws SyntaxError when `text` is no JSON list.
 */
export function withEntry(text: string, entry: object): string {
  const entries: unknown = text.trim() ? JSON.parse(text) : [];
  if (!Array.isArray(entries)) throw new SyntaxError("expected a list");
  const ours = entries.findIndex((other) => other?.name === NAME);
  if (ours < 0) entries.push(entry);
  else entries[ours] = { ...("apiKey" in entries[ours] ? { apiKey: entries[ours].apiKey } : {}), ...entry };
  return `${JSON.stringify(entries, null, 2)}\n`;
}
