// What a client is compared with: the same language and driver, and no client. Whoever
// holds a plain advisory lock leads. bare.js bare ELECTION CANDIDATE (see ../README.md)
'use strict'
const { setTimeout: sleep } = require('node:timers/promises')
const pg = require('pg')

const election = process.argv[3]
const { env } = process
const say = (...words) => process.stdout.write(`${[...words, process.hrtime.bigint()].join(' ')}\n`)
const hosts = env.PGHOST.split(',')
const ports = env.PGPORT.split(',').map(Number)
let leads = false
let client

async function lead(turn) {
  const at = { host: hosts[turn % hosts.length], port: ports[turn % ports.length] }
  try {
    client = new pg.Client({ ...at, connectionTimeoutMillis: 2000 }).on('error', () => {})
    await client.connect()
    await client.query('SELECT pg_advisory_lock(hashtext($1))', [election])
    say('elected', 1)
    leads = true
    for (;;) {
      const asked = process.hrtime.bigint()
      await client.query('SELECT')
      say('working', 1, asked)
      await sleep(50)
    }
  } catch {
    if (leads) say('lost', 'connection lost')
    leads = false
  }
  await sleep(50)
}

process.on('SIGTERM', () => {
  client?.connection.stream.destroy()
  if (leads) say('lost', 'closed')
  process.stdout.write(`closed ${process.hrtime.bigint()}\n`, () => process.exit(0))
  leads = false
})
say('ready')
;(async () => {
  for (let turn = 0; ; turn++) await lead(turn)
})()
