/** Server-sent events. */

/**
 * The data of each event of a stream; comments are skipped.
 *
 * @param body bytes as they come, cut anywhere.
 */
export async function* events(body: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let held = "";
  let data: string[] = [];
  for await (const bytes of body) {
    held += decoder.decode(bytes, { stream: true });
    const lines = held.split(/\r\n|\n/);
    held = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      else if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}
