// The driver of clients/node for the conformance suite; also an example. Protocol: test/clients.
// node.js session|detached ELECTION CANDIDATE
'use strict'
const { Leadership, DetachedLeadership } = require('../../../clients/node/leader_election.js')
const { setTimeout: sleep } = require('node:timers/promises')
const pg = require('pg')

const [kind, election, candidate] = process.argv.slice(2)
const env = process.env
const ms = (name, seconds) => Number(env[name] ?? seconds) * 1000
const say = (...words) => process.stdout.write(`${[...words, process.hrtime.bigint()].join(' ')}\n`)

const list = (text) => text.split(',')
const [hosts, ports] = [list(env.PGHOST ?? '127.0.0.1'), list(env.PGPORT ?? '5432').map(Number)]
const config = { user: env.PGUSER, password: env.PGPASSWORD, database: env.PGDATABASE, connectionTimeoutMillis: 2000 }
const more = { ...config, query_timeout: env.QUERY_TIMEOUT && ms('QUERY_TIMEOUT') }
const where = hosts.map((host, i) => ({ ...more, host, port: ports[i % ports.length] }))

// A pool of pg knows one host: after a failure, this one tries the next.
function poolOf(hosts, ports, more) {
  let next = 0
  class AnyHost extends pg.Client {
    constructor(config) { super({ ...config, host: hosts[next % hosts.length], port: ports[next % ports.length] }) }
    connect(done) { return super.connect((error) => { next += error ? 1 : 0; done(error) }) }
  }
  return new pg.Pool({ ...more, Client: AnyHost }).on('error', () => {}).on('connect', (c) => c.on('error', () => {}))
}

let turned = 0
const options = {
  election,
  candidate,
  callTimeout: ms('CALL_TIMEOUT', 1),
  slice: ms('SLICE', 1),
  interval: ms('INTERVAL', 0.2),
  healthCheck: env.HEALTH ? () => !leadership.leads || performance.now() - turned < ms('HEALTH') : undefined,
}
const pool = poolOf(hosts, ports, { ...more, max: 2 })
const leadership = kind === 'session' ? new Leadership({ ...options, connect: where })
  : new DetachedLeadership({ ...options, pool, listen: env.LISTEN && where })

leadership.on('elected', (term) => say('elected', term))
leadership.on('lost', (reason) => say('lost', reason))
if (env.YIELD) {
  leadership.on('yield', async (term) => {
    say('yield', term)
    await sleep(200)
    leadership.resign()
  })
}

const workers = poolOf(list(env.WORKHOST ?? env.PGHOST), list(env.WORKPORT ?? env.PGPORT).map(Number), { ...config, max: 1 })
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

async function close() {
  await leadership.close()
  process.stdout.write(`closed ${process.hrtime.bigint()}\n`, () => process.exit(0))
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
leadership.run(work).catch((error) => {
  process.stdout.write(`error ${error.code ?? 'XX000'} ${error.message}\n`, () => process.exit(3))
})
