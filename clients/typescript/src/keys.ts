/** Makes keys, and finds the client of a request behind trusted proxies. Knows no framework. */

import { BlockList, isIP } from "node:net";

/** The most hops of X-Forwarded-For that are looked at, as in the server. */
const HOPS_MAX = 64;

/**
 * A key as the server's own doors make them: `makeKey("api", { user: "ann" })` is `api user=ann`.
 *
 * Spaces, `%` and control characters are percent-encoded, so that no value can pretend to be
 * another entry. Throws a `TypeError` for a value that is missing, which clients would share.
 */
export function makeKey(domain: string, entries: Record<string, string | number> = {}): string {
  const parts = [encoded(domain, /[\x00-\x20\x7f%]/g)];
  for (const [name, value] of Object.entries(entries)) {
    // What is not typed may pass null or undefined.
    if (value === null || value === undefined) throw new TypeError(`makeKey: ${name} is ${value}`);
    const text = encoded(String(value), /[\x00-\x20\x7f%]/g);
    parts.push(`${encoded(name, /[\x00-\x20\x7f%=]/g)}=${text}`);
  }
  return parts.join(" ");
}

function encoded(text: string, odd: RegExp): string {
  const hex = (c: string) => c.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0");
  return text.replace(odd, (c) => `%${hex(c)}`);
}

/** The networks that these texts name: `10.0.0.0/8`, `::1`. */
export function networks(trustedProxies: readonly string[]): BlockList {
  const list = new BlockList();
  for (const text of trustedProxies) {
    const [, address = "", bits] = /^([^/]+)(?:\/(\d{1,3}))?$/.exec(text) ?? [];
    if (isIP(address) === 0) throw new TypeError(`"${text}" is not a network such as 10.0.0.0/8`);
    const family = isIP(address) === 6 ? "ipv6" : "ipv4";
    const prefix = Number(bits ?? (family === "ipv6" ? 128 : 32));
    list.addSubnet(address, prefix, family);
    if (!isNetwork(address, prefix)) throw new TypeError(`"${text}" has bits beyond its prefix`);
  }
  return list;
}

function isNetwork(address: string, bits: number): boolean {
  if (isIP(address) === 6) {
    const written = canonical(address);
    return network(written, bits) === `${written}/${bits}`;
  }
  const number = address.split(".").reduce((sum, octet) => sum * 256 + Number(octet), 0);
  return number % 2 ** (32 - bits) === 0;
}

/**
 * The address of the client: the peer's, or the one that a trusted peer names. `forwardedFor` is
 * X-Forwarded-For. It is read from the right, because a client can write anything to the left of
 * its own address. `-` if there is no address, as with a Unix socket. With an `ipv6Prefix` of 64
 * it is `2001:db8:1:2::/64` for all of that network.
 */
export function clientAddress(
  peer: string | undefined,
  forwardedFor: string,
  trusted: BlockList = new BlockList(),
  ipv6Prefix = 128,
): string {
  let client = address(peer ?? "");
  if (client === null) return "-";
  for (const hop of forwardedFor.split(",").slice(-HOPS_MAX).reverse()) {
    const before = address(hop.trim());
    if (before === null || !trusted.check(client, isIP(client) === 6 ? "ipv6" : "ipv4")) break;
    client = before;
  }
  return ipv6Prefix < 128 && isIP(client) === 6 ? network(client, ipv6Prefix) : client;
}

/** The network of an IPv6 address in its one way to write it. */
function network(address: string, bits: number): string {
  const [head, tail] = address.split("::").map((part) => part.split(":").filter(Boolean));
  const [front = [], back = []] = [head, tail];
  const zeros = Array<string>(8 - front.length - back.length).fill("0");
  const masked = [...front, ...zeros, ...back].map((group, at) => {
    const kept = Math.min(Math.max(bits - 16 * at, 0), 16);
    return (parseInt(group, 16) & (0xffff << (16 - kept))).toString(16);
  });
  return `${canonical(masked.join(":"))}/${bits}`;
}

function canonical(ipv6: string): string {
  return new URL(`http://[${ipv6}]`).hostname.slice(1, -1);
}

function address(text: string): string | null {
  const written = /^\[(.*)\](?::\d+)?$/.exec(text) ?? /^(\d+\.\d+\.\d+\.\d+):\d+$/.exec(text);
  // Without the zone of fe80::1%eth0, which is a name of this machine's.
  const bare = (written?.[1] ?? text).replace(/%.*$/, "");
  if (isIP(bare) !== 6) return isIP(bare) === 4 ? bare : null;
  // The one way to write it, out of several.
  const ipv6 = canonical(bare);
  const mapped = /^::ffff:([0-9a-f]+):([0-9a-f]+)$/.exec(ipv6);
  if (mapped === null) return ipv6;
  const [high, low] = [parseInt(mapped[1] ?? "", 16), parseInt(mapped[2] ?? "", 16)];
  return `${high >> 8}.${high & 255}.${low >> 8}.${low & 255}`;
}
