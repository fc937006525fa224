/** The agentspec server. Knows nothing of VS Code. */

import { type Cursor, isWithinLine, promptOf, type Suggestion, trim } from "./inline";
import { events } from "./sse";

/** An error that the server named, or that kept it from answering. */
export class ServerError extends Error {
  constructor(
    message: string,
    readonly status?: number,
    readonly param?: string,
  ) {
    super(message);
  }
}

/** Where a document is: its path in a repository, and that repository. */
export interface Place {
  readonly path?: string;
  readonly repository?: string;
}

/** What is to be changed. */
export interface EditRequest extends Place {
  readonly content: string;
  readonly instruction: string;
  /** Lines from 1, the last one included. */
  readonly selection?: { readonly start_line: number; readonly end_line: number };
}

export interface Repository {
  readonly path: string;
  readonly state: "queued" | "indexing" | "ready" | "failed";
  readonly progress: { readonly files_done: number; readonly files_total: number };
  readonly error: string | null;
}

/** The part of `/v1/state` that is used here. */
export interface State {
  readonly model: string | null;
  readonly context_length: number | null;
  readonly engine: { readonly ready: boolean };
  readonly repositories: readonly Repository[];
  readonly history: readonly {
    readonly completion_tokens: number;
    readonly verify_steps: number;
    readonly accepted: Readonly<Record<string, number>>;
  }[];
}

interface Completion {
  readonly id: string;
  readonly choices: readonly { readonly text: string; readonly finish_reason: string }[];
}

export class Client {
  private fillsIn = true;
  readonly root: string;

  /**
   * @param url base URL, with or without `/v1`.
   * @param key the server's key, where it asks for one.
   */
  constructor(
    url: string,
    private readonly key?: string,
  ) {
    this.root = url.replace(/\/+$/, "").replace(/\/v1$/, "");
  }

  /** What to insert at a cursor. A model that cannot fill in the middle continues the text before it instead. */
  async complete(cursor: Cursor, place: Place, maxTokens: number, signal: AbortSignal): Promise<Suggestion> {
    const body = {
      prompt: promptOf(cursor),
      max_tokens: maxTokens,
      temperature: 0,
      stop: isWithinLine(cursor) ? ["\n"] : ["\n\n\n"],
      repository: place.repository,
      edited_path: place.path,
    };
    let answer: Completion;
    try {
      answer = await this.post("/v1/completions", this.fillsIn ? { ...body, suffix: cursor.suffix } : body, signal);
    } catch (error) {
      if (!(error instanceof ServerError && error.param === "suffix")) throw error;
      this.fillsIn = false;
      answer = await this.post("/v1/completions", body, signal);
    }
    const choice = answer.choices[0];
    if (!choice) throw new ServerError("the server answered without a choice");
    return { id: answer.id, text: trim(choice.text, cursor, choice.finish_reason !== "length") };
  }

  /**
   * Change a file: the new text, piece by piece. The old text is the prediction that the server drafts from.
   *
   * @returns the id of the answer, once the file is complete.
   * @throws ServerError also when the answer ends before the file does.
   */
  async *edit(request: EditRequest, signal: AbortSignal): AsyncGenerator<string, string> {
    const response = await this.send("/v1/edits", { ...request, stream: true }, signal);
    let id = "";
    let finish: string | null = null;
    for await (const data of events(response.body as unknown as AsyncIterable<Uint8Array>)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message);
      id = chunk.id;
      finish = chunk.finish_reason ?? finish;
      if (chunk.delta) yield chunk.delta;
    }
    if (finish !== "stop") throw new ServerError(`the new file is not complete (${finish ?? "the stream ended"})`);
    return id;
  }

  /** Have a folder indexed. */
  async register(path: string): Promise<Repository> {
    return this.post("/v1/repositories", { path });
  }

  /** Tell what became of an answer. */
  async feedback(id: string, accepted: boolean): Promise<void> {
    await this.post("/v1/feedback", { id, accepted });
  }

  async state(): Promise<State> {
    return (await this.send("/v1/state")).json() as Promise<State>;
  }

  private async post<Answer>(path: string, body: object, signal?: AbortSignal): Promise<Answer> {
    return (await this.send(path, body, signal)).json() as Promise<Answer>;
  }

  /** Send a request; `body` makes it a POST. */
  private async send(path: string, body?: object, signal?: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = { accept: "application/json, text/event-stream" };
    if (this.key) headers.authorization = `Bearer ${this.key}`;
    if (body) headers["content-type"] = "application/json";
    let response: Response;
    try {
      const method = body ? "POST" : "GET";
      response = await fetch(this.root + path, { method, headers, body: body && JSON.stringify(body), signal });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ServerError(`no server answers at ${this.root}`);
    }
    if (response.ok) return response;
    const text = await response.text();
    let named: { message?: string; param?: string } = {};
    try {
      named = JSON.parse(text).error ?? {};
    } catch {
      // Something else than agentspec answered.
    }
    throw new ServerError(named.message ?? `the server answered ${response.status}`, response.status, named.param);
  }
}
