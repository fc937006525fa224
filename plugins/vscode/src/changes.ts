/** Old and new text of an edit. Knows nothing of VS Code. */

/** Lines of the old text searched for a line of the new one, when guessing how far a streamed edit has come. */
const LOOKAHEAD = 200;

/** One replacement: characters `start` to `end` of the old text become `text`. */
export interface Replacement {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

/** A small replacement of whole lines that turns `before` into `after`; undefined when they are equal. */
export function replacement(before: string, after: string): Replacement | undefined {
  if (before === after) return undefined;
  const shorter = Math.min(before.length, after.length);
  let start = 0;
  while (start < shorter && before[start] === after[start]) start++;
  start = start === 0 ? 0 : before.lastIndexOf("\n", start - 1) + 1;
  let kept = 0;
  while (kept < shorter - start && before[before.length - 1 - kept] === after[after.length - 1 - kept]) kept++;
  const line = before.indexOf("\n", before.length - kept);
  kept = kept === 0 || line < 0 ? 0 : before.length - line - 1;
  return { start, end: before.length - kept, text: after.slice(start, after.length - kept) };
}

/**
 * What the file will look like, as far as it is known: the streamed lines, then those old ones that the stream has not
 * come to yet.
 */
export function preview(before: string, streamed: string): string {
  const done = streamed.slice(0, streamed.lastIndexOf("\n") + 1);
  const old = before.split(/(?<=\n)/);
  let reached = 0;
  for (const line of done.split(/(?<=\n)/)) {
    if (!line.trim()) continue;
    const found = old.slice(reached, reached + LOOKAHEAD).indexOf(line);
    if (found >= 0) reached += found + 1;
  }
  return done + old.slice(reached).join("");
}
