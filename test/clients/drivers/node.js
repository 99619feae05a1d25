// The driver of clients/node for the conformance suite; also an example. Protocol: test/clients.
// node.js session|detached ELECTION CANDIDATE
'use strict'
const { Leadership, DetachedLeadership } = require('../../../clients/node/leader_election.js')
const { setTimeout: sleep } = require('node:timers/promises')
const pg = require('pg')

const { env } = process
const [kind, election, given] = process.argv.slice(2)
const ms = (name, seconds) => Number(env[name] ?? seconds) * 1000
const say = (...words) => process.stdout.write(`${[...words, process.hrtime.bigint()].join(' ')}\n`)
const list = (text) => text.split(',')

// A pool of pg knows one host: after a failure, this one tries the next.
function poolOf(hosts, ports, more) {
  let next = 0
  class AnyHost extends pg.Client {
    constructor(config) { super({ ...config, host: hosts[next % hosts.length], port: ports[next % ports.length] }) }
    connect(done) { return super.connect((error) => { next += error ? 1 : 0; done(error) }) }
  }
  return new pg.Pool({ ...more, connectionTimeoutMillis: 2000, Client: AnyHost }).on('error', () => {})
    .on('connect', (client) => client.on('error', () => {}))
}

// --- the client

let turned = 0
const options = {
  election,
  candidate: env.DEFAULT_NAME ? undefined : given,
  callTimeout: ms('CALL_TIMEOUT', 1),
  slice: env.DEFAULT_SLICE ? undefined : ms('SLICE', 1),
  interval: ms('INTERVAL', 0.2),
  refusalTimeout: env.REFUSAL_TIMEOUT && ms('REFUSAL_TIMEOUT'),
  pooler: env.POOLER,
  healthCheck: env.HEALTH ? () => !leadership.leads || performance.now() - turned < ms('HEALTH') : undefined,
}
const limit = { query_timeout: env.QUERY_TIMEOUT && ms('QUERY_TIMEOUT') }
const connect = { connectionTimeoutMillis: 2000, ...limit } // the rest is in PGHOST and so on, or PGSERVICE
const make = {
  session: () => new Leadership({ ...options, connect }),
  detached: () => {
    const pool = poolOf(list(env.PGHOST), list(env.PGPORT).map(Number), { ...limit, max: 2 })
    return new DetachedLeadership({ ...options, pool, listen: env.LISTEN && connect })
  },
}
const leadership = make[kind]()
const { candidate } = leadership
if (env.DEFAULT_NAME) say('name', candidate)

leadership.on('elected', (term) => {
  say('elected', term)
  return misbehave('elected')
})
leadership.on('lost', (reason) => {
  say('lost', reason)
  return misbehave('lost')
})
if (env.YIELD || env.HANDLER?.startsWith('yield')) {
  leadership.on('yield', async (term) => {
    say('yield', term)
    if (misbehaving === 'yield') return misbehave('yield')
    await sleep(200)
    leadership.resign()
  })
}

// HANDLER=EVENT:WHAT is done once.
let [misbehaving, what] = env.HANDLER?.split(':') ?? []
function misbehave(event) {
  if (event !== misbehaving) return
  misbehaving = undefined
  if (what === 'raise') throw new Error("a handler of the driver's")
  if (what === 'exit') process.exit(7)
  if (what === 'block') return sleep(2 * ms('LEASE'))
  if (what === 'close') leadership.close()
  if (what === 'resign') leadership.resign()
  if (what === 'wait') return leadership.wait()
}

let state
setInterval(() => {
  if (leadership.state !== state) say('state', state = leadership.state)
}, 20)

// --- the work

const workers = poolOf(list(env.WORKHOST ?? env.PGHOST), list(env.WORKPORT ?? env.PGPORT).map(Number),
  { user: env.WORKUSER ?? env.PGUSER, database: env.WORKDATABASE ?? env.PGDATABASE, max: 1 })
async function write(term) {
  const client = await workers.connect().catch(() => null)
  if (!client) return
  try {
    await client.query('BEGIN')
    await leadership.fenced(client)
    await client.query('SELECT conformance.write($1, $2, $3)', [election, candidate, term])
    await client.query('COMMIT')
    say('wrote', term)
    client.release()
  } catch (error) {
    say('refused', term, error.code?.length === 5 ? error.code : 'XX000')
    client.release(true)
    if (/LE00[12]/.test(error.code)) throw error // the end of the work, and of the leadership
  }
}

async function work(term, signal) {
  for (let turn = 1; ; turn++) {
    turned = performance.now()
    const asked = process.hrtime.bigint()
    if (leadership.term === term) say('working', term, asked)
    if (turn % 5 === 0) await write(term)
    await sleep(20, null, { signal })
  }
}

// The same, beside handlers that take their time: run() would begin when they have returned.
async function workBeside() {
  leadership.on('error', () => {}) // the next wait() throws it
  for (;;) {
    const term = await leadership.wait(20)
    const asked = process.hrtime.bigint()
    if (leadership.term === term && term !== null) say('working', term, asked)
    if (leadership.state === 'closed') return leadership.close()
    await sleep(20)
  }
}

// --- the end

async function close() {
  await leadership.close()
  end(`closed ${process.hrtime.bigint()}`, 0)
}
function end(line, status) {
  say('state', leadership.state)
  process.stdout.write(`${line}\n`, () => process.exit(status))
}
process.on('SIGTERM', close)
require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const [word, time] = line.split(' ')
  if (word === 'resign') leadership.resign()
  if (word === 'say') leadership.setMetadata('said')
  if (word === 'close') close()
  if (word === 'hang') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, Number(time)) // blocks the event loop
})
say('ready')
const working = env.HANDLER ? workBeside() : leadership.run(work)
working.then(close, (error) => end(`error ${error.code ?? 'XX000'} ${error.message}`, 3))
