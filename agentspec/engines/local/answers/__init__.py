"""What a chat model's answer is made of: reasoning, text and tool calls, told apart while it is written."""
