// What all of them share: the fixed clock, the packages, and the file of a case.

import crypto from "node:crypto";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { mock } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

const VECTORS = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
export const require = createRequire(path.join(process.cwd(), "package.json"));
export const AT_MS = Date.parse("2026-11-01T12:00:00Z");
export const AT = AT_MS / 1000;
export const AT_ISO = new Date(AT_MS).toISOString().replace(".000Z", "Z");
mock.timers.enable({ apis: ["Date"], now: AT_MS });

export const root = (name) => path.join(process.cwd(), "node_modules", name);
const version = (name) => JSON.parse(fs.readFileSync(path.join(root(name), "package.json"))).version;
export const at = (name) => `npm ${name} ${version(name)}`;
export const load = (name, file) => import(pathToFileURL(path.join(root(name), file)));

export const hmac = (key, text, encoding, algorithm = "sha256") =>
  crypto.createHmac(algorithm, key).update(text).digest(encoding);
export const compact = (value) => JSON.stringify(value);

export function write(provider, name, vector) {
  const folder = path.join(VECTORS, provider);
  fs.mkdirSync(folder, { recursive: true });
  const { made_by, secret, ...rest } = vector;
  const whole = {
    made_by,
    secret,
    at: AT_ISO,
    method: "POST",
    url: `https://gateway.example.com/webhooks/${provider}`,
    ...rest,
  };
  fs.writeFileSync(path.join(folder, `${name}.json`), JSON.stringify(whole, null, 2) + "\n");
}

/** Accepted as it is, refused when the body is another: else the check itself proves nothing. */
export async function accepted(body, check) {
  if (!(await holds(check, body))) throw new Error(`refused: ${body}`);
  if (await holds(check, body.replace(/.$/s, " ") + " "))
    throw new Error(`accepted although changed: ${body}`);
}

async function holds(check, body) {
  try {
    return (await check(body)) !== false;
  } catch {
    return false;
  }
}

export const json = { "content-type": "application/json" };

/** A key pair whose private half is the same at every run. */
export function ed25519(fill) {
  const seed = Buffer.alloc(32, fill);
  const der = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), seed]);
  const privateKey = crypto.createPrivateKey({ key: der, format: "der", type: "pkcs8" });
  const raw = crypto.createPublicKey(privateKey).export({ format: "der", type: "spki" }).subarray(-32);
  return { der, privateKey, raw };
}
