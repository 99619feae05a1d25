// Several leaderships of clients/node in one process, with the log of test/chaos/candidate.c
// for each: many.js INSTANCE KIND:ELECTION:CANDIDATE:LOG...
'use strict'
const { Leadership, DetachedLeadership } = require('../../../clients/node/leader_election.js')
const { setTimeout: sleep } = require('node:timers/promises')
const fs = require('node:fs')
const pg = require('pg')

const TURN_MS = 200
const TURNS_PER_WRITE = 10
const [instance, ...given] = process.argv.slice(2)
const offset = BigInt(process.env.CLOCK_OFFSET_US) // of CLOCK_BOOTTIME, which Node.js does not read
const now = () => process.hrtime.bigint() / 1000n + offset
const place = { host: '127.0.0.1', port: Number(process.env.POOL_PORT), database: process.env.POOL_DATABASE }
const poolOf = (max) => new pg.Pool({ ...place, connectionTimeoutMillis: 15000, max }).on('error', () => {})
  .on('connect', (client) => client.on('error', () => {}))
const workers = poolOf(2)
let nextId = Number(instance) * 1000000

const members = given.map((argument) => {
  const [kind, election, candidate, log] = argument.split(':')
  const options = { election, candidate, callTimeout: 5000, slice: 500, interval: 200 }
  return {
    election, candidate, log: fs.openSync(log, 'a'),
    leadership: kind === 'session' ? new Leadership({ ...options, connect: { connectionTimeoutMillis: 15000 } })
      : new DetachedLeadership({ ...options, pool: poolOf(2) }),
  }
})

async function write({ election, candidate, log, leadership }, term) {
  const id = ++nextId
  let [client, outcome, sent] = [null, 'committed', now()]
  try {
    client = await workers.connect()
    await client.query('BEGIN')
    await leadership.fenced(client)
    term = leadership.term ?? term // the fenced one, else COMMIT fails
    await client.query(`INSERT INTO chaos."w_${election}" (term, candidate, id) VALUES ($1, $2, $3)`,
      [term, candidate, id])
    sent = now()
    await client.query('COMMIT')
    client.release()
  } catch (error) {
    outcome = error.code?.length === 5 ? error.code : 'lost'
    client?.release(true)
  }
  fs.writeSync(log, `w ${election} ${sent} ${now()} ${term} ${id} ${outcome}\n`)
}

// In each turn wait() throws what has ended it.
async function stand(member) {
  const { leadership, election, log } = member
  leadership.on('error', () => {})
  for (let n = 0; ; n++) {
    await leadership.wait(0)
    const sent = now()
    const term = leadership.term
    if (term !== null && term !== undefined) {
      fs.writeSync(log, `q 1 ${election} ${sent} ${now()} ${term}\n`)
      if (n % TURNS_PER_WRITE === 0) await write(member, term)
    }
    await sleep(TURN_MS)
  }
}

process.on('SIGTERM', async () => {
  await Promise.allSettled(members.map(({ leadership }) => leadership.close()))
  process.exit(0)
})
Promise.all(members.map(stand)).catch((error) => {
  console.log(`gave up: ${error.code} ${error.message}`)
  process.exit(3)
})
