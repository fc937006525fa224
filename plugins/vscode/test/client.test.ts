import assert from "node:assert/strict";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import test from "node:test";
import { Client, ServerError } from "../src/client";

type Answer = (request: IncomingMessage, body: Record<string, unknown>, response: ServerResponse) => void;

/** Run `use` with a client of a server on loopback that answers with `answer`. */
async function serving(answer: Answer, use: (client: Client, server: Server) => Promise<void>, key?: string) {
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    answer(request, text ? JSON.parse(text) : {}, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await use(new Client(`http://127.0.0.1:${(server.address() as AddressInfo).port}/v1/`, key), server);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

function json(response: ServerResponse, body: object, status = 200) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

const cursor = { uri: "u", prefix: "def f(", suffix: "): pass" };
const completion = { id: "cmpl-1", choices: [{ text: "a, b", finish_reason: "stop" }] };
const never = new AbortController().signal;

async function collect(stream: AsyncGenerator<string, string>) {
  const pieces: string[] = [];
  for (;;) {
    const next = await stream.next();
    if (next.done) return { pieces, id: next.value };
    pieces.push(next.value);
  }
}

test("a completion sends both sides of the cursor, the place and the key", async () => {
  let seen: Record<string, unknown> = {};
  const answer: Answer = (request, body, response) => {
    seen = { ...body, url: request.url, key: request.headers.authorization };
    json(response, completion);
  };
  await serving(
    answer,
    async (client) => {
      const place = { path: "a.py", repository: "/r" };
      assert.deepEqual(await client.complete(cursor, place, 5, never), { id: "cmpl-1", text: "a, b" });
    },
    "sesame",
  );
  assert.deepEqual(seen, {
    prompt: "def f(",
    suffix: "): pass",
    max_tokens: 5,
    temperature: 0,
    stop: ["\n"],
    repository: "/r",
    edited_path: "a.py",
    url: "/v1/completions",
    key: "Bearer sesame",
  });
});

test("a model that cannot fill in the middle is asked to continue, and not asked again", async () => {
  const suffixes: unknown[] = [];
  const answer: Answer = (_, body, response) => {
    suffixes.push(body.suffix);
    if (body.suffix === undefined) json(response, completion);
    else json(response, { error: { message: "no template", param: "suffix" } }, 400);
  };
  await serving(answer, async (client) => {
    await client.complete(cursor, {}, 5, never);
    await client.complete(cursor, {}, 5, never);
  });
  assert.deepEqual(suffixes, ["): pass", undefined, undefined]);
});

test("cancelling closes the connection", async () => {
  let gone: () => void;
  const left = new Promise<void>((resolve) => (gone = resolve));
  const abort = new AbortController();
  const answer: Answer = (_request, _body, response) => {
    response.on("close", gone);
    abort.abort();
  };
  await serving(answer, async (client) => {
    await assert.rejects(client.complete(cursor, {}, 5, abort.signal), { name: "AbortError" });
    await left;
  });
});

function stream(...chunks: object[]): Answer {
  return (_request, _body, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(": keepalive\n\n");
    const bytes = Buffer.from(chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\r\n\r\n`).join("") + "data: [DONE]\n\n");
    // Cut in the middle of characters and of line ends.
    for (let start = 0; start < bytes.length; start += 7) response.write(bytes.subarray(start, start + 7));
    response.end();
  };
}

test("an edit streams, however its bytes are cut", async () => {
  const chunks = [{ id: "e", delta: "a🙂\n" }, { id: "e", delta: "b" }, { id: "e", delta: "", finish_reason: "stop" }];
  await serving(stream(...chunks), async (client) => {
    const edit = client.edit({ content: "x", instruction: "y" }, never);
    assert.deepEqual(await collect(edit), { pieces: ["a🙂\n", "b"], id: "e" });
  });
});

test("an edit that is cut off or fails is an error", async () => {
  const request = { content: "x", instruction: "y" };
  for (const last of [{ id: "e", delta: "", finish_reason: "length" }, { error: { message: "broken" } }]) {
    await serving(stream({ id: "e", delta: "a" }, last), async (client) => {
      await assert.rejects(collect(client.edit(request, never)), ServerError);
    });
  }
  await serving(stream(), async (client) => {
    await assert.rejects(collect(client.edit(request, never)), /stream ended/);
  });
});

test("errors say what the server said, or that there is none", async () => {
  await serving(
    (_request, _body, response) => json(response, { error: { message: "no such key", param: null } }, 401),
    async (client) => {
      await assert.rejects(client.state(), { message: "no such key", status: 401 });
    },
  );
  await serving(
    (_request, _body, response) => response.writeHead(502).end("<html>"),
    async (client) => {
      await assert.rejects(client.register("/r"), { message: "the server answered 502" });
    },
  );
  await assert.rejects(new Client("http://127.0.0.1:9").state(), /no server answers/);
});
