#!/usr/bin/env node
// The npm package redlock (with ioredis) behind the adapter protocol of `dibs torture` (docs/torture.md).
//
// It uses redlock.using(), which extends the lock by itself half a second before it expires. "held" is what its
// documentation asks a program to check: the signal is not aborted. It has no fence. The library counts retries and
// knows no time to wait: the wait becomes that many retries of 200 ms.
//
// DIBS_TORTURE_URL: redis://host:port, or redlock://h1:p1,h2:p2,... for several independent servers. Packages: npm
// install in this folder, or NODE_PATH.
'use strict';
const path = require('path');
const readline = require('readline');
const Redis = require('ioredis');
const { default: Redlock, ResourceLockedError } = require('redlock');

const RETRY_DELAY = 200, RETRY_JITTER = 100;
const url = process.env.DIBS_TORTURE_URL || 'redis://127.0.0.1:6379';
const clients = url.replace(/^[a-z]+:\/\//, '').replace(/\/.*/, '').split(',').map(host => new Redis('redis://' + host));
for (const client of clients) client.on('error', () => {}); // ioredis connects again by itself
const redlock = new Redlock(clients, { retryDelay: RETRY_DELAY, retryJitter: RETRY_JITTER });
const grants = new Map();

// Did all servers answer that another has the lock (or that this one no longer has it)?
async function wasRefused(error) {
  const attempts = await Promise.all(error.attempts || []);
  const votes = attempts.flatMap(stats => [...stats.votesAgainst.values()]);
  return votes.length > 0 && votes.every(vote => vote instanceof ResourceLockedError);
}

function lock(name, waitMs, leaseMs) {
  return new Promise(resolve => {
    const settings = { retryCount: Math.floor(waitMs / RETRY_DELAY) };
    let granted = false;
    const over = redlock.using([name], leaseMs, settings, signal => new Promise(release => {
      granted = true;
      grants.set(name, { signal, release, over: () => over });
      resolve('granted -');
    }));
    over.catch(async error => {
      if (!granted) resolve(await wasRefused(error) ? 'busy' : 'error ' + error.message);
    });
  });
}

function held(name) {
  return grants.has(name) && !grants.get(name).signal.aborted ? 'yes' : 'no';
}

async function unlock(name) {
  const grant = grants.get(name);
  if (!grant) return 'error ' + name + ' is not held';
  grants.delete(name);
  grant.release();
  try {
    await grant.over();
    return 'released';
  } catch (error) {
    return grant.signal.aborted || await wasRefused(error) ? 'lost' : 'error ' + error.message;
  }
}

async function answer([verb, name, ...numbers]) {
  if (verb === 'lock') return lock(name, ...numbers.map(Number));
  if (verb === 'held') return held(name);
  if (verb === 'unlock') return unlock(name);
  return 'error unknown request ' + verb;
}

// The package exports no package.json: it is read from where its code is.
function version() {
  return require(path.join(path.dirname(require.resolve('redlock')), '..', '..', 'package.json')).version;
}

async function main() {
  console.log('dibs-adapter 1 redlock ' + version());
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const words = line.split(' ');
    if (words[0] === 'quit') break;
    const text = await answer(words).catch(error => 'error ' + error.message);
    console.log(text.replace(/\s+/g, ' '));
  }
  process.exit(0);
}

main();
