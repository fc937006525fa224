/**
 * The extension in a real VS Code: code-server with Chromium in front of it, and a server.
 *
 * Environment: AGENTSPEC_URL, CODE_SERVER (its entry.js), VSIX, CHROMIUM, FOLDER (a workspace with calculator.py),
 * SCRIPTED (set where the model answers by the script of tests/clients/agent_script.py; any other model may suggest
 * and change what it likes), SCREENSHOTS (optional). Prints one line for each thing seen; exits with 1 at the first that
 * is not.
 */

import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { type AddressInfo, connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import * as path from "node:path";
import { chromium, type Locator, type Page } from "playwright-core";
import type { State } from "../src/client";

const PATIENCE_MILLISECONDS = 180_000;
const FILE = "calculator.py";
const INSTRUCTION = "Make add return the sum of its arguments";
const SCRIPTED = Boolean(process.env.SCRIPTED);

function required(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`set ${name}`);
  return value;
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Answer at `port` with what `url` answers: to an editor that is there already, a server that starts. */
async function openDoor(port: number, url: string): Promise<() => void> {
  const { hostname, port: target } = new URL(url);
  const door = createServer((incoming) => {
    const outgoing = connect(Number(target), hostname);
    for (const [from, to] of [[incoming, outgoing], [outgoing, incoming]] as const) {
      from.on("error", () => to.destroy());
      from.pipe(to);
    }
  });
  await new Promise<void>((resolve) => door.listen(port, "127.0.0.1", resolve));
  return () => door.close();
}

/** A VS Code with the extension and settings of its own. */
class CodeServer {
  readonly data = mkdtempSync(path.join(tmpdir(), "agentspec-vscode-"));
  private process: ChildProcess | undefined;

  constructor(
    private readonly entry: string,
    readonly serverUrl: string,
  ) {
    mkdirSync(path.join(this.data, "User"), { recursive: true });
    const settings = {
      "agentspec.url": serverUrl,
      "security.workspace.trust.enabled": false,
      "telemetry.telemetryLevel": "off",
      "workbench.startupEditor": "none",
      "workbench.secondarySideBar.defaultVisibility": "hidden",
      "chat.disableAIFeatures": true,
      "editor.accessibilitySupport": "off",
      "editor.minimap.enabled": false,
      "editor.quickSuggestions": false, // its list would take the Tab that accepts a suggestion
      "editor.wordBasedSuggestions": "off",
      "extensions.ignoreRecommendations": true,
      "files.autoSave": "afterDelay",
      "files.autoSaveDelay": 200,
    };
    writeFileSync(path.join(this.data, "User", "settings.json"), JSON.stringify(settings));
  }

  private get flags(): string[] {
    return ["--config", path.join(this.data, "config.yaml"), "--user-data-dir", this.data, "--extensions-dir", path.join(this.data, "extensions")];
  }

  install(vsix: string): void {
    execFileSync(process.execPath, [this.entry, ...this.flags, "--install-extension", vsix], { stdio: "pipe" });
  }

  async start(): Promise<string> {
    const port = await freePort();
    const flags = ["--auth", "none", "--bind-addr", `127.0.0.1:${port}`, "--disable-telemetry", "--disable-update-check"];
    this.process = spawn(process.execPath, [this.entry, ...this.flags, ...flags], { stdio: "ignore" });
    const url = `http://127.0.0.1:${port}`;
    const deadline = Date.now() + PATIENCE_MILLISECONDS;
    while (!(await fetch(`${url}/healthz`).catch(() => undefined))?.ok) {
      assert.ok(Date.now() < deadline, "code-server did not start");
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    return url;
  }

  stop(): void {
    this.process?.kill();
    rmSync(this.data, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  }
}

/** What a person does in a window of VS Code. */
class Window {
  private pictures = 0;

  constructor(
    private readonly page: Page,
    private readonly folder: string,
  ) {}

  async palette(command: string): Promise<void> {
    await this.page.keyboard.press("F1");
    await this.page.locator(".quick-input-widget input").first().fill(`>${command}`);
    await this.page.locator(".quick-input-list .monaco-list-row", { hasText: command }).first().click();
  }

  async answer(text: string): Promise<void> {
    const input = this.page.locator(".quick-input-widget input").first();
    await input.waitFor();
    await input.fill(text);
    await this.page.keyboard.press("Enter");
  }

  async open(file: string): Promise<void> {
    // Quick open would need the native ripgrep.
    await this.page.locator(".explorer-folders-view .monaco-list-row", { hasText: file }).dblclick();
    await this.page.locator(".monaco-editor .view-lines").first().click();
  }

  /** Wait until `text`, or anything, is suggested; VS Code shows it in pieces, with spaces that do not break. */
  async suggested(text?: string): Promise<void> {
    const expected = (shown: string) => (text === undefined ? shown.trim() !== "" : shown.trim() === text);
    await this.shows(expected, ".view-lines [class*=ghost-text]");
  }

  /** Wait until the text of what `selector` selects is as expected. */
  async shows(expected: (text: string) => boolean, selector = ".view-lines .view-line"): Promise<void> {
    const shown = () =>
      this.page.evaluate((given) => {
        const pieces = [...document.querySelectorAll(given)];
        return pieces.map((piece) => piece.textContent).join("").replaceAll("\u00a0", " ");
      }, selector);
    const deadline = Date.now() + PATIENCE_MILLISECONDS;
    while (!expected(await shown())) {
      assert.ok(Date.now() < deadline, `shown was ${JSON.stringify(await shown())}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  /** The file on disk. */
  get file(): string {
    return readFileSync(path.join(this.folder, FILE), "utf8");
  }

  /** Ask for an edit of the whole file and wait until it is shown as a diff; the button that gives `answer`. */
  async edit(answer: "Apply" | "Discard"): Promise<Locator> {
    await this.palette("agentspec: Edit with agentspec");
    await this.answer(INSTRUCTION);
    await this.page.locator(".diff-editor, .monaco-diff-editor").first().waitFor();
    const button = this.page.locator(".notification-toast .monaco-button", { hasText: answer });
    await button.waitFor();
    return button;
  }

  /** Wait until the diff is closed. */
  async closed(): Promise<void> {
    await this.page.locator(".monaco-diff-editor").waitFor({ state: "detached" });
  }

  /** Wait until the file on disk is as expected. */
  async saved(expected: (text: string) => boolean): Promise<string> {
    const deadline = Date.now() + PATIENCE_MILLISECONDS;
    for (;;) {
      const text = this.file;
      if (expected(text)) return text;
      assert.ok(Date.now() < deadline, `the file is\n${text}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  async saw(what: string): Promise<void> {
    console.log(`saw: ${what}`);
    const folder = process.env.SCREENSHOTS;
    const name = `${++this.pictures}-${what.replace(/\W+/g, "-")}.png`;
    if (folder) await this.page.screenshot({ path: path.join(folder, name) });
  }
}

/** The extension's text in the status bar with its tooltip, as a screen reader gets it. */
async function statusSays(page: Page): Promise<string> {
  const labels = page.locator(".statusbar-item [aria-label*=agentspec]");
  return labels.evaluateAll((items) => items.map((item) => item.getAttribute("aria-label")).join("; "));
}

async function stateOf(url: string): Promise<State> {
  return (await (await fetch(`${url}/v1/state`)).json()) as State;
}

/** Tokens that the server says it has answered with in the last hour. */
async function answeredTokens(url: string): Promise<number> {
  return (await stateOf(url)).history.reduce((total, span) => total + span.completion_tokens, 0);
}

/** Have the server start after the editor, and wait until the extension has found it. */
async function serverStarts(page: Page, code: CodeServer, folder: string): Promise<() => void> {
  const status = page.locator(".statusbar-item", { hasText: "agentspec" });
  await status.filter({ hasText: "offline" }).waitFor();
  const said = await statusSays(page);
  assert.ok(said.includes(code.serverUrl), `the status bar says ${said}`);
  const url = required("AGENTSPEC_URL");
  const close = await openDoor(Number(new URL(code.serverUrl).port), url);
  await status.filter({ hasNotText: "offline" }).waitFor();
  const deadline = Date.now() + PATIENCE_MILLISECONDS;
  for (;;) {
    const { repositories } = await stateOf(url);
    const ready = repositories.some((one) => one.path === folder && one.state === "ready");
    if (ready && (await statusSays(page)).includes("Index: ready")) return close;
    assert.ok(Date.now() < deadline, `not indexed: ${JSON.stringify(repositories)}, or not shown`);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

async function look(page: Page, code: CodeServer, folder: string): Promise<void> {
  const window = new Window(page, folder);
  const status = page.locator(".statusbar-item", { hasText: "agentspec" });
  await window.open(FILE);
  await window.saw("the status bar");

  const before = window.file;
  const apply = await window.edit("Apply");
  await window.saw("the edit as a diff");
  assert.equal(window.file, before, "nothing changes before the user agrees");
  await apply.click();
  await window.saved((text) => (SCRIPTED ? text === before.replace("a - b", "a + b") : text !== before));
  await window.closed();
  await window.saw("the edit applied");

  await page.keyboard.press("Control+z");
  await window.saved((text) => text === before);
  await window.saw("the edit undone in one step");

  await (await window.edit("Discard")).click();
  await window.closed();
  await window.shows((text) => text.includes("return a - b"));
  assert.equal(window.file, before, "a discarded edit changes nothing");
  await window.saw("the edit discarded");

  const answered = await answeredTokens(code.serverUrl);
  await page.locator(".monaco-editor .view-lines").first().click();
  await page.keyboard.press("Control+End");
  await page.keyboard.type("\n\ndef total(a, b):\n", { delay: 20 });
  await window.suggested(SCRIPTED ? "return a + b" : undefined);
  assert.ok((await answeredTokens(code.serverUrl)) > answered, "the server counts no completion");
  await window.saw("a suggestion");
  if (SCRIPTED) {
    await page.keyboard.type("return", { delay: 20 });
    await window.suggested("a + b");
  }
  await page.keyboard.press("Tab");
  const completed = await window.saved((text) => /def total\(a, b\):\s*\S/.test(text));
  if (SCRIPTED) assert.match(completed, /def total\(a, b\):\n {4}return a \+ b\s*$/);
  await window.saw("the suggestion accepted");

  await status.filter({ hasText: "drafted" }).waitFor();
  await window.saw("acceptance in the status bar");

  await window.palette("agentspec: Add the model to VS Code's chat");
  const entries = path.join(code.data, "User", "chatLanguageModels.json");
  const deadline = Date.now() + PATIENCE_MILLISECONDS;
  let text = "";
  while (!text) {
    assert.ok(Date.now() < deadline, "no model entry was written");
    await new Promise((resolve) => setTimeout(resolve, 200));
    text = (() => {
      try {
        return readFileSync(entries, "utf8");
      } catch {
        return "";
      }
    })();
  }
  assert.equal(JSON.parse(text)[0].models[0].url, `${code.serverUrl}/v1/chat/completions`);
  await window.saw("the model entry");
}

async function main(): Promise<void> {
  const folder = required("FOLDER");
  const code = new CodeServer(required("CODE_SERVER"), `http://127.0.0.1:${await freePort()}`);
  const browser = await chromium.launch({ executablePath: required("CHROMIUM"), args: ["--no-sandbox"] });
  let closeDoor: (() => void) | undefined;
  try {
    code.install(required("VSIX"));
    const url = await code.start();
    const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    page.setDefaultTimeout(PATIENCE_MILLISECONDS);
    await page.goto(`${url}/?folder=${encodeURIComponent(folder)}`);
    try {
      closeDoor = await serverStarts(page, code, folder);
      console.log("saw: a server that started after the editor");
      await look(page, code, folder);
    } catch (error) {
      console.error("the status bar says", await statusSays(page));
      if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, "failed.png") });
      throw error;
    }
  } finally {
    closeDoor?.();
    await browser.close();
    code.stop();
  }
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
