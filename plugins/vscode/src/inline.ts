/** What is asked of the model at a cursor, and what of its answer is worth showing. Knows nothing of VS Code. */

/** Most characters before and behind the cursor that the model is shown. */
const PREFIX_CHARACTERS = 8192;
const SUFFIX_CHARACTERS = 2048;

/** The shown text begins at a multiple of this, so that it stays the same from key to key and its KV is reused. */
const WINDOW_STEP = 2048;

/** Suggestions kept for a user who types what was suggested. */
const REMEMBERED = 16;

/** Characters that make a line recognisable; shorter ones, such as a closing bracket, recur by chance. */
const RECOGNISABLE = 3;

/** The text around a cursor, as far as the model is shown it. */
export interface Cursor {
  readonly uri: string;
  readonly prefix: string;
  readonly suffix: string;
}

/** A completion: the id of the server's answer, and the text to insert; empty when there is nothing to suggest. */
export interface Suggestion {
  readonly id: string;
  readonly text: string;
}

/** The cursor at `offset` of `text`. */
export function cursorAt(uri: string, text: string, offset: number): Cursor {
  const begin = Math.ceil(Math.max(0, offset - PREFIX_CHARACTERS) / WINDOW_STEP) * WINDOW_STEP;
  return {
    uri,
    prefix: text.slice(Math.min(begin, offset), offset),
    suffix: text.slice(offset, offset + SUFFIX_CHARACTERS),
  };
}

/**
 * The space or tab before the cursor, which is left to the model to write.
 *
 * Tokenizers join the last one of an indentation to the word behind it. Text that ends with it is text as models have
 * not seen it: they write it again, or nothing.
 */
function held(cursor: Cursor): string {
  return /[\s\S][ \t]$/.test(cursor.prefix) ? cursor.prefix.slice(-1) : "";
}

/** What the model continues. */
export function promptOf(cursor: Cursor): string {
  return cursor.prefix.slice(0, cursor.prefix.length - held(cursor).length);
}

function restOfLine(cursor: Cursor): string {
  return cursor.suffix.split("\n", 1)[0] ?? "";
}

/** Whether code follows on the same line; then a completion of several lines makes no sense. */
export function isWithinLine(cursor: Cursor): boolean {
  return /[\p{L}\p{N}]/u.test(restOfLine(cursor));
}

/**
 * The part of `completion`, written behind `promptOf(cursor)`, that does not repeat what stands around the cursor.
 *
 * @param complete false when it was cut off; then its last line, which may be half a line, is dropped.
 */
export function trim(completion: string, cursor: Cursor, complete: boolean): string {
  const before = held(cursor);
  let lines = (completion.startsWith(before) ? completion.slice(before.length) : completion).split("\n");
  if (!complete && lines.length > 1) lines.pop();
  if (isWithinLine(cursor)) lines = lines.slice(0, 1);
  const following = (cursor.suffix.split("\n").slice(1).find((line) => line.trim()) ?? "").trimEnd();
  if (following.trim().length >= RECOGNISABLE) {
    const repeated = lines.findIndex((line, index) => index > 0 && line.trimEnd() === following);
    if (repeated > 0) lines = lines.slice(0, repeated);
  }
  return withoutOverlap(lines.join("\n").trimEnd(), restOfLine(cursor)).trimEnd();
}

/** `text` without an end that is how `rest` begins. */
function withoutOverlap(text: string, rest: string): string {
  for (let length = Math.min(text.length, rest.length); length > 0; length--) {
    if (text.endsWith(rest.slice(0, length))) return text.slice(0, -length);
  }
  return text;
}

/** Recent suggestions; who types the beginning of one is shown its rest, without asking the model again. */
export class Memory {
  private recent: { cursor: Cursor; suggestion: Suggestion }[] = [];

  add(cursor: Cursor, suggestion: Suggestion): void {
    this.recent = [{ cursor, suggestion }, ...this.recent].slice(0, REMEMBERED);
  }

  /** What an earlier suggestion says for `cursor`, if one does. */
  recall(cursor: Cursor): Suggestion | undefined {
    for (const { cursor: earlier, suggestion } of this.recent) {
      if (earlier.uri !== cursor.uri || earlier.suffix !== cursor.suffix) continue;
      if (!cursor.prefix.startsWith(earlier.prefix)) continue;
      const typed = cursor.prefix.slice(earlier.prefix.length);
      if (suggestion.text.startsWith(typed) && (suggestion.text.length > typed.length || typed === "")) {
        return { id: suggestion.id, text: suggestion.text.slice(typed.length) };
      }
    }
    return undefined;
  }
}
