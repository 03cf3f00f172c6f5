// The same where there is more to it: a handshake, or a published request.

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

import { by } from "./checked.mjs";
import { AT, AT_ISO, AT_MS, accepted, at, compact, ed25519, hmac, json, require, root, write } from "./common.mjs";

export async function zoom() {
  const { CommonHttpRequest } = await zoomInternals();
  const secret = "zoom-secret-token";
  const sign = (body) => ({
    ...json, "x-zm-request-timestamp": String(AT),
    "x-zm-signature": `v0=${hmac(secret, `v0:${AT}:${body}`, "hex")}`,
  });
  const process = (body) => CommonHttpRequest.buildFromAwsEvent(
    { body, headers: sign(started), isBase64Encoded: false }, secret).processEvent();
  const started = compact({ event: "meeting.started", payload: { account_id: "AAAAAABBBB", object: { id: "1234567890" } }, event_ts: AT_MS });
  if (process(started).event !== "meeting.started") throw new Error("zoom refused");
  write("zoom", "event", {
    made_by: by(`${at("@zoom/rivet")} CommonHttpRequest.processEvent`), secret,
    headers: sign(started), body: started, events: [{ id: null, type: "meeting.started" }],
  });
  const asked = compact({ payload: { plainToken: "qgg8vlvZRS6UYooatFL8Aw" }, event_ts: AT_MS, event: "endpoint.url_validation" });
  const answer = CommonHttpRequest.buildFromAwsEvent(
    { body: asked, headers: sign(asked), isBase64Encoded: false }, secret).processEvent();
  write("zoom", "url-validation", {
    made_by: by(`${at("@zoom/rivet")} CommonHttpRequest.processEvent, which also made the answer`), secret,
    headers: sign(asked), body: asked, events: [],
    answer: { status: 200, headers: json, body: compact({ plainToken: answer.plainToken, encryptedToken: answer.encryptedToken }) },
  });
}

/** Zoom exports the receivers, not the class in them that verifies: it is taken from the module's text. */
async function zoomInternals() {
  const file = path.join(root("@zoom/rivet"), "meetings/meetings.cjs");
  const text = fs.readFileSync(file, "utf8") + "\nexports.CommonHttpRequest = CommonHttpRequest;\n";
  const module = { exports: {} };
  new Function("module", "exports", "require", text)(module, module.exports, createRequire(file));
  return module.exports;
}

export async function sendgrid() {
  const { EventWebhook } = require("@sendgrid/eventwebhook");
  const check = (key, body, signature, timestamp) => {
    const lib = new EventWebhook();
    return lib.verifySignature(lib.convertPublicKeyToECDSA(key), body, signature, timestamp);
  };
  const headers = (signature, timestamp) => ({
    ...json,
    "x-twilio-email-event-webhook-signature": signature,
    "x-twilio-email-event-webhook-timestamp": String(timestamp),
  });
  // The two payloads with which SendGrid tests its own library (src/eventwebhook.spec.js there).
  const spec = fs.readFileSync(path.join(root("@sendgrid/eventwebhook"), "src/eventwebhook.spec.js"), "utf8");
  const published = new Function(
    `${spec.slice(spec.indexOf("const PUBLIC_KEY ="), spec.indexOf("describe('#verifySignature()'"))}
     return [[PUBLIC_KEY, PAYLOAD, SIGNATURE, TIMESTAMP],
             [PUBLIC_KEY_MULTIPLE, PAYLOAD_MULTIPLE_EVENTS, SIGNATURE_MULTIPLE, TIMESTAMP_MULTIPLE]];`)();
  const names = ["published", "published-batch"];
  for (const [index, [key, body, signature, timestamp]] of published.entries()) {
    await accepted(body, (text) => check(key, text, signature, timestamp));
    write("sendgrid", names[index], {
      made_by: `published: src/eventwebhook.spec.js of ${at("@sendgrid/eventwebhook")}`,
      secret: key, at: new Date(timestamp * 1000).toISOString().replace(".000Z", "Z"),
      headers: headers(signature, timestamp), body,
      events: JSON.parse(body).map((item) => ({ id: item.sg_event_id, type: item.event })),
    });
  }
}

export async function discord() {
  const { verifyKey } = require("discord-interactions");
  const nacl = require("tweetnacl");
  const pair = nacl.sign.keyPair.fromSeed(Buffer.alloc(32, 2));
  const hex = (bytes) => Buffer.from(bytes).toString("hex");
  const secret = hex(pair.publicKey);
  const sign = (body) => ({
    ...json, "x-signature-timestamp": String(AT),
    "x-signature-ed25519": hex(nacl.sign.detached(Buffer.from(AT + body), pair.secretKey)),
  });
  const cases = {
    event: [
      compact({ version: 1, application_id: "1234560123453231555", type: 1, event: { type: "APPLICATION_AUTHORIZED", timestamp: AT_ISO, data: { scopes: ["bot"] } } }),
      { events: [{ id: null, type: "APPLICATION_AUTHORIZED" }] },
    ],
    ping: [
      compact({ version: 1, application_id: "1234560123453231555", type: 0 }),
      { events: [], answer: { status: 204 } },
    ],
  };
  for (const [name, [body, expected]] of Object.entries(cases)) {
    const headers = sign(body);
    await accepted(body, (text) => verifyKey(text, headers["x-signature-ed25519"], headers["x-signature-timestamp"], secret));
    write("discord", name, {
      made_by: `signed with ${at("tweetnacl")}, accepted by ${at("discord-interactions")} verifyKey`,
      secret, private_key: ed25519(2).der.toString("base64"), headers, body, ...expected,
    });
  }
}
