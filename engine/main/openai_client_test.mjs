// A stock OpenAI client against assayd on the shipped model: streams a chat, calls a tool, reads logprobs.
//   scripts/setup --full; node openai_client_test.mjs ASSAYD MODEL build/npm
// Exit 77 where the folder has no package `openai`.
import {spawn} from "node:child_process";
import {strict as assert} from "node:assert";
import {createRequire} from "node:module";
import {resolve} from "node:path";

const [program, model, folder] = process.argv.slice(2);
let OpenAI;
try {
  OpenAI = createRequire(resolve(folder) + "/")("openai").OpenAI;
} catch {
  console.error("skipped: the npm package `openai` is not installed (scripts/setup --full)");
  process.exit(77);
}
const daemon = spawn(program, ["--model", model, "--port", "0", "--numerics", "exact"], {stdio: ["ignore", "inherit", "pipe"]});
const base = await new Promise((found, reject) => {
  let log = "";
  daemon.stderr.on("data", data => {
    log += data;
    const line = /listening on (http:\S+)/.exec(log);
    if (line) found(line[1]);
  });
  daemon.on("exit", code => reject(Error(`assayd ended with ${code}: ${log}`)));
});
try {
  const client = new OpenAI({baseURL: base + "/v1", apiKey: "none", maxRetries: 0});
  const models = (await client.models.list()).data;
  assert.equal(models.length, 1);
  assert.deepEqual(await client.models.retrieve(models[0].id), models[0]);
  await assert.rejects(client.models.retrieve("gpt-4o"), e => e.status === 404 && e.param === "model");
  await assert.rejects(client.embeddings.create({model: "any", input: "x"}), e => e.status === 404 && e.message.includes("/v1/embed"));

  const messages = [{role: "user", content: "SQLite: VACUUM"}];
  let text = "", finish, usage;
  const stream = await client.chat.completions.create(
    {model: "any", messages, stream: true, temperature: 0, max_tokens: 12, stream_options: {include_usage: true}});
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.ok(text.length > 0 && ["stop", "length"].includes(finish) && usage.completion_tokens > 0);

  const whole = await client.chat.completions.create(
    {model: "any", messages, temperature: 0, max_tokens: 12, logprobs: true, top_logprobs: 3});
  assert.equal(whole.choices[0].message.content, text);
  const logprobs = whole.choices[0].logprobs.content;
  assert.equal(logprobs.length, whole.usage.completion_tokens);
  assert.ok(logprobs.every(l => l.logprob <= 0 && l.top_logprobs.length === 3));

  const tool = {type: "function", function: {name: "lookup", description: "Looks up a page",
    parameters: {type: "object", properties: {page: {type: "string", enum: ["vacuum", "index"]}}, required: ["page"]}}};
  const called = await client.chat.completions.create(
    {model: "any", messages, tools: [tool], tool_choice: "required", temperature: 0, max_tokens: 64});
  const call = called.choices[0].message.tool_calls[0];
  assert.equal(called.choices[0].finish_reason, "tool_calls");
  assert.equal(call.function.name, "lookup");
  assert.ok(["vacuum", "index"].includes(JSON.parse(call.function.arguments).page));

  const runner = client.chat.completions.stream({model: "any", messages, tools: [tool], tool_choice: "required", temperature: 0, max_tokens: 64});
  const last = await runner.finalChatCompletion();
  assert.equal(last.choices[0].message.tool_calls[0].function.name, "lookup");

  await assert.rejects(client.chat.completions.create({model: "any", messages, temperature: 99}),
    e => e.status === 400 && e.code === "bad_request" && e.param === "temperature");
  console.log("the stock client streamed, called a tool and read logprobs");
} finally {
  daemon.removeAllListeners("exit");
  daemon.kill("SIGTERM");
}
