// Tests without a server: what FakeLeadership and SoleLeadership promise, events, run(), the clock;
// errors, over a pool of ours and at servers of ours that speak as much of the protocol as that takes.
// With a server, if TEST_SERVER is set (PGHOST and so on say where): run(), over real connections.
'use strict'
const assert = require('node:assert')
const dns = require('node:dns')
const { EventEmitter, once } = require('node:events')
const fs = require('node:fs')
const net = require('node:net')
const os = require('node:os')
const path = require('node:path')
const { test, mock } = require('node:test')
const { setTimeout: sleep } = require('node:timers/promises')
const pg = require('pg')
const clients = require('./leader_election.js')
const { Addresses } = require('./leader_election_base.js')
const { DetachedLeadership, FakeLeadership, Leadership, NotLeader, SoleLeadership } = clients

// What a client, or pg, reads of the environment is no test's, but for those with a server.
const READ = /^(PG|KUBERNETES_|POD_NAME$|HOSTNAME$)/
const ofServer = Object.fromEntries(Object.entries(process.env).filter(([name]) => READ.test(name)))
for (const name of Object.keys(ofServer)) delete process.env[name]
process.env.PGPASSFILE = os.devNull

const noop = () => {}

async function until(condition) {
  const end = performance.now() + 60000
  while (!condition()) {
    assert.ok(performance.now() < end, `in time: ${condition}`)
    await sleep(5)
  }
}

/** A pool whose server is answer(sql, values), which gives rows or throws. */
function poolOf(answer) {
  const pool = { sent: [], released: [], answer }
  pool.connect = async () => Object.assign(new EventEmitter(), {
    query: async (text, values) => {
      pool.sent.push(text.match(/leader_election\.(\w+)|(?=is_in_recovery)/)[1] ?? 'standby?')
      return { rows: await answer(pool.sent.at(-1), values) }
    },
    release: (broken) => pool.released.push(broken),
  })
  return pool
}

/** One that leads from its first call on. */
const leader = (remaining = '9000') =>
  poolOf((call) => (call === 'acquire' ? [{ term: '1', remaining_ms: remaining, yielding: false }] : []))

/**
 * Renews after a tenth of a second, and not after a third of the lease. So the lease may be long: it
 * does not run out while the machine stands still.
 */
function renewingSoon(leadership) {
  const ask = leadership._ask
  leadership._ask = async (...words) => {
    const grant = await ask.apply(leadership, words)
    return grant && { ...grant, third: 100 }
  }
  return leadership
}

const answers = (code) => Object.assign(new Error(`answer ${code}`), { code, severity: 'ERROR' })

/** A log function that keeps all but who leads. */
const troublesIn = (logged) => (text) => /^(elected|lost) leader/.test(text) || logged.push(text)

function follow(leadership) {
  const events = []
  for (const event of ['elected', 'lost', 'yield']) leadership.on(event, (argument) => events.push(`${event} ${argument}`))
  return events
}

test('a lease ends by the clock, and lost is told once', async () => {
  const fake = new FakeLeadership()
  const events = follow(fake)
  await fake.elect()
  await fake.advance(14999)
  assert.strictEqual(fake.term, 1)
  await fake.advance(1)
  assert.strictEqual(fake.term, null)
  assert.strictEqual(fake.leads, false)
  await fake.lose('closed')
  await fake.elect()
  assert.strictEqual(fake.term, 2)
  assert.strictEqual(fake.changes, 2)
  assert.deepStrictEqual(events, ['elected 1', 'lost expired', 'elected 2'])
})

test('after the deadline the reason is expired, whatever ends the leadership', async () => {
  const ways = [(fake) => fake.resign(), (fake) => fake.lose(), (fake) => fake.close(), (fake) => fake.elect()]
  for (const way of ways) {
    const fake = new FakeLeadership({ log: noop })
    const events = follow(fake)
    await fake.elect()
    fake._now += 15000 // and no timer has run
    await way(fake)
    await fake._queue
    assert.deepStrictEqual(events.slice(0, 2), ['elected 1', 'lost expired'], String(way))
    await fake.close()
  }
})

test('elect() that is not awaited elects all the same, each in its turn', async () => {
  const fake = new FakeLeadership({ log: noop })
  const events = follow(fake)
  await Promise.all([fake.elect(), fake.elect(), fake.elect()])
  assert.deepStrictEqual(events, ['elected 1', 'lost failover', 'elected 2', 'lost failover', 'elected 3'])
  assert.strictEqual(fake.term, 3)
  await fake.close()
})

test('term is null at once, and handlers run one at a time', async () => {
  const fake = new FakeLeadership()
  const order = []
  fake.on('elected', async () => {
    await sleep(20)
    order.push('elected has returned')
  })
  fake.on('lost', () => order.push(`lost, term ${fake.term}`))
  fake.elect()
  await fake.wait()
  const lost = fake.lose()
  assert.strictEqual(fake.term, null)
  await lost
  assert.deepStrictEqual(order, ['elected has returned', 'lost, term null'])
})

for (const event of ['elected', 'lost']) {
  test(`a handler of ${event} that fails is the end, with its error`, async () => {
    const pool = leader()
    const detached = new DetachedLeadership({ election: 'e', pool, log: noop })
    const events = follow(detached)
    detached.on('error', (error) => events.push(`error ${error.message}`))
    detached.on(event, () => Promise.reject(new Error('handler')))
    detached.on(event, () => events.push('the next one'))
    await once(detached, 'elected')
    if (event === 'lost') detached.resign()
    await assert.rejects(detached.wait(), { message: 'handler' })
    await detached.close()
    assert.deepStrictEqual(events, event === 'elected'
      ? ['elected 1', 'the next one', 'lost error', 'error handler']
      : ['elected 1', 'lost resigned', 'the next one', 'error handler'])
    assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
    assert.strictEqual(detached.state, 'failed: XX000 handler')
  })
}

test('wait() rejects when the lease has been given back, and not before', async () => {
  const pool = poolOf(async (call) => {
    if (call === 'release') await sleep(100)
    return leader().answer(call)
  })
  const detached = new DetachedLeadership({ election: 'e', pool, log: noop })
  detached.on('elected', () => Promise.reject(new Error('handler')))
  detached.on('error', noop)
  await until(() => detached.state.startsWith('failed'))
  let outcome = null
  while (outcome === null) outcome = await detached.wait(5).catch((error) => error.message)
  assert.strictEqual(outcome, 'handler')
  assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
})

test('a handler of yield that fails is logged, and we resign at once', async () => {
  const logged = []
  const fake = new FakeLeadership({ log: troublesIn(logged) })
  const events = follow(fake)
  fake.on('yield', () => {
    throw new Error('handler')
  })
  await fake.elect()
  await fake.askYield()
  await fake.elect()
  assert.deepStrictEqual(events, ['elected 1', 'yield 1', 'lost yielded', 'elected 2'])
  assert.deepStrictEqual(logged, ["a handler of 'yield' failed:"])
})

test('a handler of error that fails is logged; one that blocks holds close() for callTimeout', async () => {
  const logged = []
  const fake = new FakeLeadership({ callTimeout: 30, log: troublesIn(logged) })
  fake.on('elected', () => {
    throw new Error('handler')
  })
  fake.on('error', () => {
    throw new Error('another')
  })
  fake.on('error', () => new Promise(noop))
  await fake.elect()
  await fake.close()
  assert.deepStrictEqual(logged, ["a handler of 'elected' failed:", "a handler of 'error' failed:"])
})

for (const log of [() => { throw new Error('log') }, () => Promise.reject(new Error('log'))]) {
  test(`a log function that fails changes nothing: ${log}`, { timeout: 20000 }, async () => {
    let full = true
    const pool = poolOf((call) => {
      if (full) throw answers('53300')
      return leader('2000').answer(call)
    })
    const detached = new DetachedLeadership({ election: 'e', pool, log, callTimeout: 50 })
    await until(() => detached.state.startsWith('unreachable'))
    full = false
    assert.strictEqual(await detached.wait(10000), 1)
    detached.on('lost', () => sleep(150)) // longer than callTimeout: that is logged
    detached.resign()
    assert.strictEqual(await detached.wait(10000), 1)
    await detached.close()
    assert.strictEqual(detached.state, 'closed')

    const fake = new FakeLeadership({ log })
    const events = follow(fake)
    fake.on('yield', () => {
      throw new Error('handler')
    })
    await fake.elect()
    await fake.askYield()
    fake.on('elected', () => {
      throw new Error('mine')
    })
    await fake.elect()
    await assert.rejects(fake.wait(), { message: 'mine' })
    assert.deepStrictEqual(events, ['elected 1', 'yield 1', 'lost yielded', 'elected 2', 'lost error'])
  })
}

test('a handler, or work, that fails with nothing is the end, too', { timeout: 20000 }, async () => {
  for (const nothing of [undefined, null, false]) {
    const handled = new FakeLeadership({ log: noop })
    handled.on('elected', () => Promise.reject(nothing))
    handled.on('error', noop)
    await handled.elect()
    await assert.rejects(handled.wait(60000), /without an error/)
    assert.match(handled.state, /^failed: XX000 /)
    const worked = new FakeLeadership({ log: noop })
    worked.on('error', noop)
    const running = worked.run(() => Promise.reject(nothing))
    await worked.elect()
    await assert.rejects(running, /without an error/)
  }
})

test('close() and resign() in a handler do not wait', async () => {
  const fake = new FakeLeadership()
  const events = follow(fake)
  fake.once('elected', () => fake.resign())
  fake.once('lost', () => fake.resign())
  await fake.elect()
  await fake.lose() // nothing left to lose, and all has been told then
  await fake.elect()
  fake.once('lost', () => {
    fake.close()
  })
  await fake.lose()
  await fake.wait()
  assert.deepStrictEqual(events, ['elected 1', 'lost resigned', 'elected 2', 'lost connection lost'])
  assert.strictEqual(fake.state, 'closed')
})

test('a yield ends by resign() in the handler, without a handler at once', async () => {
  const asked = new FakeLeadership()
  asked.on('yield', () => asked.resign())
  const events = follow(asked)
  await asked.elect()
  await asked.askYield()
  await asked.askYield()
  assert.deepStrictEqual(events, ['elected 1', 'yield 1', 'lost yielded'])

  const plain = new FakeLeadership()
  const lost = once(plain, 'lost')
  await plain.elect()
  await plain.askYield()
  assert.deepStrictEqual(await lost, ['yielded'])
})

test('wait: term, null after a timeout or close', async () => {
  const fake = new FakeLeadership()
  assert.strictEqual(await fake.wait(5), null)
  const waiting = fake.wait()
  fake.elect(7)
  assert.strictEqual(await waiting, 7)
  await fake.lose()
  const closed = fake.wait()
  await fake.close()
  await fake.close()
  assert.strictEqual(await closed, null)
})

test('wait() in a handler of lost ends with close(), and not before', async () => {
  const pool = leader()
  const detached = new DetachedLeadership({ election: 'e', pool, log: noop })
  await detached.wait()
  let outcome = 'waits'
  detached.on('lost', async () => (outcome = await detached.wait()))
  detached.resign()
  await sleep(50)
  assert.strictEqual(outcome, 'waits')
  await detached.close()
  assert.strictEqual(outcome, null)
  assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
})

test('wait() after an error, where the end waits for it: for callTimeout, and not for ever', async () => {
  for (const where of ['a handler of lost', 'the work']) {
    const pool = leader()
    const detached = new DetachedLeadership({ election: 'e', pool, log: noop, callTimeout: 100 })
    let outcome = null
    const waits = async () => (outcome = await detached.wait().catch((error) => error.message))
    if (where === 'the work') {
      detached.run(async (term, signal) => {
        await once(signal, 'abort')
        await waits()
      }).catch(noop)
    } else detached.on('lost', waits)
    await detached.wait()
    detached.on('yield', () => detached._fail(new Error('the end')))
    detached._askYield()
    await detached.close() // ends at the same time
    await until(() => outcome !== null)
    assert.strictEqual(outcome, 'the end', where)
    await until(() => pool.sent.includes('leave'))
    await assert.rejects(detached.wait(), { message: 'the end' })
    assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
  }
})

test('an error that wait() has thrown, because a handler hangs, does not end the process later', () => {
  const { status, stdout, stderr } = require('node:child_process').spawnSync(process.execPath, ['-e', `
    const { FakeLeadership } = require(${JSON.stringify(require.resolve('./leader_election.js'))})
    const fake = new FakeLeadership({ callTimeout: 20, log() {} })
    let end
    fake.on('elected', () => { throw new Error('handler') })
    fake.on('lost', () => {
      fake.wait(5).then(() => fake.wait()).catch((error) => {
        console.log(error.message)
        end()
      })
      return new Promise((resolve) => (end = resolve))
    })
    fake.elect()`])
  assert.strictEqual(String(stdout), 'handler\n', String(stderr))
  assert.strictEqual(status, 0, String(stderr))
})

test('the log tells of elected and lost, if the application has one', async (t) => {
  const logged = []
  const printed = t.mock.method(console, 'error', noop)
  for (const options of [{}, { log: (...words) => logged.push(words) }]) {
    const fake = new FakeLeadership({ election: 'e', ...options })
    await fake.elect(7)
    await fake.lose()
    await fake.close()
    const sole = new SoleLeadership({ election: 's', ...options })
    await sole.wait()
    await sole.close()
  }
  assert.deepStrictEqual(logged, [['elected leader of "e", term 7'], ['lost leadership of "e", term 7: connection lost'],
    ['elected leader of "s"'], ['lost leadership of "s": closed']])
  assert.strictEqual(printed.mock.callCount(), 0)
})

test('the log tells of a loss at once, while a handler of elected runs', async () => {
  const logged = []
  const fake = new FakeLeadership({ callTimeout: 30, log: (line) => logged.push(line) })
  fake.on('elected', () => new Promise(noop))
  fake.elect()
  await fake.wait()
  fake.resign()
  assert.deepStrictEqual(logged, ['elected leader of "fake", term 1', 'lost leadership of "fake", term 1: resigned'])
  await fake.close()
})

test('what the log is told to may resign', async () => {
  const logged = []
  const fake = new FakeLeadership({ log: (line) => {
    logged.push(line)
    fake.resign()
  } })
  const events = follow(fake)
  await fake.elect()
  assert.deepStrictEqual(events, ['elected 1', 'lost resigned'])
  assert.deepStrictEqual(logged, ['elected leader of "fake", term 1', 'lost leadership of "fake", term 1: resigned'])
  await fake.close()
})

test('run: the work of each term, its signal, its end before lost has been handled', async () => {
  const fake = new FakeLeadership()
  const order = []
  const running = fake.run(async (term, signal) => {
    order.push(`begin ${term}`)
    await once(signal, 'abort')
    await sleep(10)
    order.push(`end ${term}`)
  })
  for (const term of [1, 2]) {
    await fake.elect(term)
    await fake.lose()
    order.push('given back')
  }
  await fake.elect(3)
  await fake.close()
  await running
  assert.deepStrictEqual(order, ['begin 1', 'end 1', 'given back', 'begin 2', 'end 2', 'given back', 'begin 3', 'end 3'])
})

test('run: the work that returns resigns, the work that fails ends all', async () => {
  const fake = new FakeLeadership()
  const events = follow(fake)
  const running = fake.run(async (term) => {
    if (term === 2) throw new Error('work')
    fake.resign() // does not wait for its own end
  })
  await fake.elect()
  await fake.elect()
  await assert.rejects(running, { message: 'work' })
  assert.deepStrictEqual(events, ['elected 1', 'lost resigned', 'elected 2', 'lost error'])
})

test('run: LE001 or LE002 is a loss, not the end', async () => {
  const logged = []
  const fake = new FakeLeadership({ log: (message, error) => logged.push(error.code ?? error.message) })
  const events = follow(fake)
  const running = fake.run(async (term) => {
    if (term === 2) fake._now += 20000 // a loop that was blocked until after the deadline
    if (term === 4) fake.lose() // and what follows from that
    throw Object.assign(new NotLeader('lost'), { code: term === 1 ? 'LE002' : 'LE001' })
  })
  for (const reason of ['not renewed', 'expired', 'not renewed', 'connection lost']) {
    const lost = once(fake, 'lost')
    fake.elect()
    assert.deepStrictEqual(await lost, [reason])
  }
  await fake.close()
  await running
  assert.strictEqual(events.length, 8)
  assert.deepStrictEqual(logged, ['LE002', 'LE001'])
})

test('a handler, or work, that does not end after the loss is logged, once', async () => {
  for (const kind of ['handler', 'work']) {
    const logged = []
    let end
    const hangs = () => new Promise((resolve) => (end = resolve))
    const pool = poolOf((call) => (call === 'acquire' ? [{ term: '1', remaining_ms: '9000', yielding: false }] : []))
    const log = troublesIn(logged)
    const detached = new DetachedLeadership({ election: 'e', pool, callTimeout: 50, log })
    if (kind === 'work') detached.run(hangs)
    else detached.on('lost', hangs)
    await detached.wait()
    await sleep(70)
    assert.deepStrictEqual(logged, [])
    const began = performance.now()
    detached.resign()
    await until(() => logged.length > 0)
    assert.ok(performance.now() - began > 45, 'logged at once')
    assert.deepStrictEqual(pool.sent, ['acquire'])
    assert.match(logged[0], /not ended/)
    end()
    await detached.close()
    assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
    assert.strictEqual(logged.length, 1)
  }
})

test('a handler may await close(), which then does not wait for it any longer than callTimeout', async () => {
  const fake = new FakeLeadership({ callTimeout: 30 })
  const events = follow(fake)
  fake.on('elected', () => fake.close())
  await fake.elect()
  await fake.close()
  assert.deepStrictEqual(events, ['elected 1', 'lost closed'])
})

test('a health check that fails or hangs ends the leadership, and nothing is renewed', async () => {
  for (const sick of [false, Object.create(null), 'throws', 'throws true', 'hangs']) {
    let health = true
    const healthCheck = async () => {
      if (health === 'throws') throw new Error('sick')
      if (health === 'throws true') throw true // eslint-disable-line no-throw-literal
      if (health === 'hangs') await new Promise(noop)
      return health
    }
    const pool = leader('3000')
    const detached = renewingSoon(new DetachedLeadership({ election: 'e', pool, healthCheck, log: noop }))
    await detached.wait()
    health = sick
    assert.deepStrictEqual(await once(detached, 'lost'), [sick === 'hangs' ? 'expired' : 'unhealthy'])
    await detached.close()
    assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
  }
})

test('a health check that hangs is not asked again meanwhile, and does not hold close()', async () => {
  let asked = 0
  let answer
  const healthCheck = () => ++asked === 1 || new Promise((resolve) => (answer = resolve))
  const options = { election: 'e', healthCheck, log: noop }
  const detached = renewingSoon(new DetachedLeadership({ ...options, pool: leader(), callTimeout: 50 }))
  await once(detached, 'lost') // the second one hangs
  await until(() => detached.state === 'unhealthy')
  assert.strictEqual(await detached.wait(2500), null) // in which two more are due
  assert.strictEqual(asked, 2)
  answer(true)
  await until(() => asked === 3) // what it said late is not about now
  await detached.close()

  asked = 0
  const pool = leader()
  const closing = renewingSoon(new DetachedLeadership({ ...options, pool, callTimeout: 9000 }))
  await until(() => asked === 2)
  const began = performance.now()
  await closing.close()
  assert.ok(performance.now() - began < 4000, 'waited for the health check')
  assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
})

test('signal closes, also one that is aborted already', async () => {
  const controller = new AbortController()
  const fake = new FakeLeadership({ signal: controller.signal })
  await fake.elect()
  controller.abort()
  assert.strictEqual(fake.term, null)
  assert.strictEqual(await fake.wait(), null)
  assert.strictEqual(await new SoleLeadership({ election: 'e', signal: controller.signal }).wait(), null)
})

test('SoleLeadership leads without a term, and fences only if told so', async () => {
  const sole = new SoleLeadership({ election: 'e', healthCheck: () => false })
  const events = follow(sole)
  await once(sole, 'elected')
  assert.strictEqual(sole.leads, true)
  assert.strictEqual(sole.term, null)
  await assert.rejects(sole.fenced(), /no term/)
  sole.resign()
  await once(sole, 'elected')
  await sole.close()
  assert.deepStrictEqual(events, ['elected null', 'lost resigned', 'elected null', 'lost closed'])
  await assert.rejects(sole.fenced(), { code: 'LE001' })
  const unfenced = new SoleLeadership({ election: 'e', unfenced: true })
  await once(unfenced, 'elected')
  await unfenced.fenced()
  await unfenced.close()
})

test('fenced refuses without asking: not the leader, a pool, no transaction', async () => {
  const pool = poolOf((call) => (call === 'acquire' ? [{ term: '9', remaining_ms: '9000', yielding: false }] : []))
  const detached = new DetachedLeadership({ election: 'e', candidate: 'c', pool })
  const asked = []
  const client = { query: async (text, values) => asked.push(values) }
  await assert.rejects(detached.fenced(client), NotLeader)
  assert.strictEqual(await detached.wait(), 9)
  await assert.rejects(detached.fenced({ ...client, totalCount: 1 }), /not the pool/)
  await assert.rejects(detached.fenced({ ...client, getTransactionStatus: () => 'I' }), /no transaction/)
  assert.deepStrictEqual(asked, [])
  await detached.fenced(client)
  assert.deepStrictEqual(asked, [['e', 9]])
  await detached.close()
  assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
})

test('a blocked event loop: term is null before any handler runs', async () => {
  const pool = poolOf((call) => (call === 'leave' ? [] : [{ term: '1', remaining_ms: '150', yielding: false }]))
  const detached = new DetachedLeadership({ election: 'e', pool })
  await detached.wait()
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200)
  assert.strictEqual(detached.term, null)
  assert.deepStrictEqual(await once(detached, 'lost'), ['expired'])
  await detached.close()
})

test('the clock goes on while the machine sleeps', async () => {
  const pool = poolOf((call) => (call === 'leave' ? [] : [{ term: '1', remaining_ms: '60000', yielding: false }]))
  const detached = new DetachedLeadership({ election: 'e', pool })
  await detached.wait()
  const uptime = os.uptime
  mock.method(os, 'uptime', () => uptime() + 9)
  assert.strictEqual(detached.term, 1)
  os.uptime.mock.mockImplementation(() => uptime() + 61)
  assert.strictEqual(detached.term, null)
  mock.restoreAll()
  await detached.close()
})

test('no timer is set to a time that is over: Node 24 warns', () => {
  const { status, stderr } = require('node:child_process').spawnSync(process.execPath, ['-e', `
    const timers = require('node:timers/promises')
    const { setTimeout } = timers
    timers.setTimeout = (ms, ...more) => (require('node:assert')(ms >= 0), setTimeout(ms, ...more))
    require(${JSON.stringify(require.resolve('./leader_election_base.js'))}).pause(-1)`])
  assert.strictEqual(status, 0, String(stderr))
})

test('the deadline is looked at each second: timers stand still while the machine sleeps', async () => {
  const pool = poolOf((call) => (call === 'leave' ? [] : [{ term: '1', remaining_ms: '60000', yielding: false }]))
  const detached = new DetachedLeadership({ election: 'e', pool })
  await detached.wait()
  const uptime = os.uptime
  mock.method(os, 'uptime', () => uptime() + 600)
  const lost = await Promise.race([once(detached, 'lost'), sleep(20000, null, { ref: false })])
  mock.restoreAll()
  await detached.close()
  assert.deepStrictEqual(lost, ['expired'])
})

test('run: work is not begun after the deadline', async () => {
  const fake = new FakeLeadership()
  const events = follow(fake)
  fake.on('elected', () => (fake._now += 20000)) // blocked until then
  const running = fake.run(() => events.push('work'))
  await fake.elect()
  await fake.close()
  await running
  assert.deepStrictEqual(events, ['elected 1', 'lost expired'])
})

test('FakeLeadership has no timers: only the test moves its clock', async () => {
  const fake = new FakeLeadership()
  const events = follow(fake)
  await fake.elect(1, 1)
  const watch = mock.method(fake, '_watch')
  await sleep(30)
  assert.strictEqual(watch.mock.callCount(), 0)
  assert.strictEqual(fake.term, 1)
  await fake.advance(1)
  assert.deepStrictEqual(events, ['elected 1', 'lost expired'])

  const { status, stdout } = require('node:child_process').spawnSync(process.execPath, ['-e', `
    const { FakeLeadership } = require(${JSON.stringify(require.resolve('./leader_election.js'))})
    const fake = new FakeLeadership()
    const began = performance.now()
    fake.run(() => new Promise(() => {}))
    fake.wait().then(console.log)
    fake.elect()
    process.on('exit', () => console.log(performance.now() - began < 10000)) // its lease is 15 s`])
  assert.strictEqual(status, 0)
  assert.strictEqual(String(stdout), '1\ntrue\n')
})

test('a grant whose answer comes too late, or after close(), is released', async () => {
  for (const remaining of ['30', '9000']) {
    const gate = new EventEmitter()
    const pool = poolOf(async (call) => {
      if (call === 'acquire') await (remaining === '30' ? sleep(50) : once(gate, 'closed'))
      return call === 'acquire' ? [{ term: '1', remaining_ms: remaining, yielding: false }] : []
    })
    const detached = new DetachedLeadership({ election: 'e', pool })
    const events = follow(detached)
    await until(() => pool.sent.length > 0)
    if (remaining === '9000') detached.close()
    gate.emit('closed')
    await until(() => pool.sent.includes('release'))
    await detached.close()
    assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
    assert.deepStrictEqual(events, [])
  }
})

test('errors of renew: term is kept until the deadline; a call that hangs loses its connection', async () => {
  let renewals = 0
  const pool = poolOf(async (call) => {
    if (call === 'acquire') return [{ term: '1', remaining_ms: '3000', yielding: false }]
    if (call !== 'renew') return []
    if (++renewals === 2) await sleep(5000, null, { ref: false })
    throw Object.assign(new Error('busy'), { code: '55P03', severity: 'ERROR' })
  })
  const began = performance.now()
  const detached = renewingSoon(new DetachedLeadership({ election: 'e', pool, callTimeout: 100, log: noop }))
  await detached.wait()
  assert.deepStrictEqual(await once(detached, 'lost'), ['expired'])
  assert.ok(performance.now() - began > 2500)
  assert.deepStrictEqual(pool.released.slice(0, 4), [false, false, true, false])
  await detached.close()
})

test('a call that got its connection too late is not sent', async () => {
  const pool = poolOf(() => [{ term: '1', remaining_ms: '9000', yielding: false }])
  const connect = pool.connect
  const late = []
  pool.connect = () => new Promise((resolve) => late.push(() => resolve(connect())))
  const detached = new DetachedLeadership({ election: 'e', pool, callTimeout: 30, log: noop })
  await until(() => detached.state.includes('no answer'))
  late[0]()
  await until(() => pool.released.length > 0)
  assert.deepStrictEqual(pool.sent, [])
  assert.deepStrictEqual(pool.released, [false])
  await detached.close()
})

test('a failover is lost and elected, and the new term is given back', async () => {
  const released = []
  const pool = poolOf((call, values) => {
    if (call === 'release') released.push(values[1])
    if (call === 'acquire') return [{ term: '1', remaining_ms: '9000', yielding: false }]
    return call === 'renew' ? [{ term: '4194305', remaining_ms: '9000', yielding: false }] : []
  })
  const detached = renewingSoon(new DetachedLeadership({ election: 'e', pool }))
  const events = follow(detached)
  await once(detached, 'lost')
  assert.strictEqual(await detached.wait(), 4194305)
  detached.resign()
  await detached.close()
  assert.deepStrictEqual(events, ['elected 1', 'lost failover', 'elected 4194305', 'lost resigned'])
  assert.deepStrictEqual(released, [4194305])
})

/** One that leads in term 1, and from the first renewal on in a greater one, with this lease. */
function failingOver(remaining = '9000') {
  const pool = poolOf((call, values) => {
    if (call === 'release') pool.given = values[1]
    if (call === 'renew') pool.renewed = values[1]
    if (call === 'acquire') return [{ term: '1', remaining_ms: '9000', yielding: false }]
    return call === 'renew' ? [{ term: '4194305', remaining_ms: remaining, yielding: false }] : []
  })
  return pool
}

test('a failover: while the handlers of lost run, there is no term, and none is renewed', async () => {
  const pool = failingOver()
  const detached = renewingSoon(new DetachedLeadership({ election: 'e', pool, log: noop }))
  const events = follow(detached)
  const gate = new EventEmitter()
  let seen
  detached.once('lost', async () => {
    seen = [detached.term, await detached.wait(10)]
    detached.resign() // there is nothing left to resign
    await once(gate, 'open')
  })
  await until(() => seen)
  await sleep(300) // a renewal would be due
  assert.deepStrictEqual(seen, [null, null])
  assert.deepStrictEqual(pool.sent, ['acquire', 'renew'])
  gate.emit('open')
  await once(detached, 'elected')
  assert.strictEqual(detached.term, 4194305)
  await until(() => pool.renewed === 4194305)
  await detached.close()
  assert.deepStrictEqual(events, ['elected 1', 'lost failover', 'elected 4194305', 'lost closed'])
})

test('a failover: a handler of lost that lasts, fails or closes: the new term is given back, untold', async () => {
  for (const way of ['lasts', 'fails', 'closes']) {
    const pool = failingOver(way === 'lasts' ? '300' : '9000')
    const detached = renewingSoon(new DetachedLeadership({ election: 'e', pool, log: noop }))
    const events = follow(detached)
    detached.once('lost', async () => {
      if (way === 'lasts') await sleep(400) // longer than the lease
      if (way === 'fails') throw new Error('handler')
      if (way === 'closes') detached.close()
    })
    detached.on('error', noop)
    await until(() => pool.sent.includes('release'))
    await detached.close()
    assert.strictEqual(pool.given, 4194305, way)
    assert.deepStrictEqual(events, ['elected 1', 'lost failover'], way)
    assert.strictEqual(pool.sent.filter((call) => call === 'renew').length, 1, way)
  }
})

for (const way of ['returns', 'fails', 'closes']) {
  test(`FakeLeadership fails over as a real one does, when a handler of lost ${way}`, async () => {
    const failedOver = async (make, failOver) => {
      const leadership = make()
      const steps = []
      const note = (step) => steps.push(`${step}, ${leadership.leads ? 'leads' : 'does not lead'}`)
      let elected = 0
      leadership.on('error', noop)
      leadership.on('elected', () => note(`elected ${++elected}`))
      leadership.once('lost', async (reason) => {
        note(`lost ${reason}`)
        await sleep(20)
        if (way === 'fails') throw new Error('handler')
        if (way === 'closes') leadership.close()
        note('lost has returned')
      })
      const running = leadership.run(async (term, signal) => {
        note('work begins')
        await once(signal, 'abort')
        note('work ends')
      }).catch(() => note('run() rejects'))
      await failOver(leadership)
      const begun = () => steps.filter((step) => step.startsWith('work begins')).length
      await until(() => (way === 'returns' ? begun() === 2 : /^(closed|failed)/.test(leadership.state)))
      if (way !== 'returns') await running
      note('the end')
      await leadership.close()
      await running
      return steps
    }
    const pool = poolOf((call) => ({
      acquire: [{ term: '1', remaining_ms: '60000', yielding: false }],
      renew: [{ term: '2', remaining_ms: '60000', yielding: false }],
    }[call] ?? []))
    const make = () => renewingSoon(new DetachedLeadership({ election: 'e', pool, log: noop }))
    const real = await failedOver(make, noop)
    assert.strictEqual(real.filter((step) => /^lost failover|^elected 1/.test(step)).length, 2)
    const fake = await failedOver(() => new FakeLeadership({ log: noop }), async (leadership) => {
      await leadership.elect()
      await leadership.elect()
    })
    assert.deepStrictEqual(fake, real)
  })
}

test('resign() while a renewal is under way gives back the term of its answer', async () => {
  const released = []
  const gate = new EventEmitter()
  const pool = poolOf(async (call, values) => {
    if (call === 'release') released.push(values[1])
    if (call === 'renew') await once(gate, 'open')
    if (call === 'acquire') return [{ term: '1', remaining_ms: '9000', yielding: false }]
    return call === 'renew' ? [{ term: '4194305', remaining_ms: '9000', yielding: false }] : []
  })
  const detached = renewingSoon(new DetachedLeadership({ election: 'e', pool }))
  await detached.wait()
  await until(() => pool.sent.includes('renew'))
  detached.resign()
  gate.emit('open')
  await detached.close()
  assert.deepStrictEqual(released, [4194305])
})

test('the end by an error: wait() rejects, or the error event, and never silence', async () => {
  const refused = () => {
    throw answers('22023')
  }
  const options = { election: 'e', refusalTimeout: 0, log: noop }
  const pool = () => poolOf((call) => (call === 'standby?' ? [{ standby: false }] : refused()))
  const waited = new DetachedLeadership({ ...options, pool: pool() })
  await assert.rejects(waited.wait(), { code: '22023' })
  const heard = new DetachedLeadership({ ...options, pool: pool() })
  const [error] = await once(heard, 'error')
  assert.strictEqual(error.code, '22023')
  await assert.rejects(heard.wait(), error)
  await heard.close()

  const { status, stderr } = require('node:child_process').spawnSync(process.execPath, ['-e', `
    const { DetachedLeadership } = require(${JSON.stringify(require.resolve('./leader_election.js'))})
    const pool = { connect: () => Promise.reject(Object.assign(new Error('wrong password'), { code: '28P01' })) }
    new DetachedLeadership({ election: 'e', pool, refusalTimeout: 0, log() {} })`])
  assert.notStrictEqual(status, 0)
  assert.match(String(stderr), /wrong password/)
})

test('the end by an error, and an error listener that throws: wait() and run() reject all the same', async () => {
  const pool = poolOf(() => {
    throw answers('28000')
  })
  pool.connect = () => Promise.reject(answers('28P01'))
  const detached = new DetachedLeadership({ election: 'e', pool, refusalTimeout: 0, log: noop })
  detached.on('error', () => {
    throw new Error('listener')
  })
  await assert.rejects(detached.run(noop), { code: '28P01' })
  await assert.rejects(Promise.race([detached.wait(), sleep(30000, null, { ref: false })]), { code: '28P01' })
  await detached.close()
})

test('remaining_ms as an application may have int8 parsed', async () => {
  for (const remaining of [9000n, '9000', 9000]) {
    const pool = poolOf((call) => (call === 'acquire' ? [{ term: 3n, remaining_ms: remaining, yielding: false }] : []))
    const detached = new DetachedLeadership({ election: 'e', pool, log: noop })
    assert.strictEqual(await detached.wait(60000), 3)
    await detached.close()
  }
})

test('a connection goes back to the pool after an error of the server, and when it came too late', async () => {
  const errors = [
    [{ code: '55P03', severity: 'ERROR' }, false],
    [{ code: '57014', severity: 'FEHLER' }, false],
    [{ code: '57P01', severity: 'FATAL' }, true],
    [{ code: '08P01', severity: 'FATAL' }, true],
    [{ code: 'EPIPE' }, true], // five characters, too
    [{}, true],
  ]
  for (const [error, broken] of errors) {
    const pool = poolOf((call) => {
      if (call === 'acquire') throw Object.assign(new Error('acquire'), error)
      return []
    })
    const detached = new DetachedLeadership({ election: 'e', pool, log: noop })
    await until(() => pool.released.length > 0)
    await detached.close()
    assert.deepStrictEqual(pool.released, [broken, false], JSON.stringify(error))
  }
})

// --- errors: what ends a client, and what it says and does meanwhile

test('what may pass is tried for ever, and state and log say what it is', async () => {
  for (const code of ['42501', '3F000', '42883', '42P01', 'LE003', 'LE004']) {
    let fails = true
    const logged = []
    const pool = poolOf((call) => {
      if (call === 'standby?') return [{ standby: false }]
      if (call === 'acquire' && fails) throw answers(code)
      return leader().answer(call)
    })
    const options = { election: 'e', pool, refusalTimeout: 0, log: troublesIn(logged) }
    const detached = new DetachedLeadership(options)
    assert.strictEqual(detached.state, 'standing')
    await until(() => pool.sent.filter((call) => call === 'acquire').length === 3)
    const hint = ['3F000', '42883'].includes(code) ? ' (CREATE EXTENSION leader_election, or portable.sql?)' : ''
    assert.strictEqual(detached.state, `refused: ${code} answer ${code}${hint}`)
    fails = false
    assert.strictEqual(await detached.wait(60000), 1)
    assert.strictEqual(detached.state, 'leads')
    await detached.close()
    assert.strictEqual(detached.state, 'closed')
    assert.strictEqual(logged.length, 2, String(logged))
    assert.match(logged[0], new RegExp(`^refused: ${code} answer`))
    assert.strictEqual(logged[1], 'all is well again')
  }
})

test('what lasts ends the client after refusalTimeout, if a primary says it without a break', async () => {
  for (const [name, standby, breaks, ends] of [['primary', false, false, true], ['standby', true, false, false],
    ['primary and standby', 'in turn', false, true], ['cannot be asked', null, false, false], ['with breaks', false, true, false]]) {
    let n = 0
    const pool = poolOf((call) => {
      if (call === 'standby?' && standby === null) throw new Error('gone')
      if (call === 'standby?') return [{ standby: standby === 'in turn' ? ++n % 2 === 0 : standby }]
      if (call === 'acquire') throw answers(breaks && ++n % 2 ? '55P03' : '22023')
      return []
    })
    const detached = new DetachedLeadership({ election: 'e', pool, refusalTimeout: 200, log: noop })
    const began = performance.now()
    const outcome = await detached.wait(ends ? 60000 : 1200).catch((error) => error.code)
    assert.strictEqual(outcome, ends ? '22023' : null, name)
    if (ends) assert.ok(performance.now() - began >= 200)
    assert.strictEqual(pool.released.includes(true), standby !== false, name) // a standby's connection is left
    await detached.close()
  }
})

test('a release that fails is tried once', async () => {
  const pool = poolOf((call) => {
    if (call === 'release' || call === 'leave') throw new Error('the server is down')
    if (pool.sent.includes('release')) throw new Error('the server is down')
    return leader().answer(call)
  })
  const logged = []
  const detached = new DetachedLeadership({ election: 'e', pool, log: troublesIn(logged) })
  await detached.wait()
  detached.resign()
  await sleep(1000)
  await detached.close()
  assert.strictEqual(pool.sent.filter((call) => call === 'release').length, 1)
  assert.ok(pool.sent.length < 12, String(pool.sent.length))
  assert.deepStrictEqual(logged, ['unreachable: the server is down'])
})

test('a release that fails during close() is logged, once', async () => {
  const pool = poolOf((call) => {
    if (call === 'release' || call === 'leave') throw new Error('the server is down')
    return leader().answer(call)
  })
  const logged = []
  const detached = new DetachedLeadership({ election: 'e', pool, log: troublesIn(logged) })
  await detached.wait()
  await detached.close()
  assert.deepStrictEqual(logged, ['the lease was not given back: the server is down'])
})

test('no more than ten attempts a second, and one line, whatever fails', async () => {
  const ways = {
    'no connection': () => ({ connect: () => Promise.reject(new Error('no connection')) }),
    'broken connections': () => poolOf(() => { throw Object.assign(new Error('broken'), { code: 'EPIPE' }) }),
    'an error with each call': () => poolOf(() => { throw answers('53200') }),
    'terms that are over at once': () => leader('0'),
    'no leader, and many notifications': () => poolOf(() => []),
  }
  for (const [way, make] of Object.entries(ways)) {
    const logged = []
    const pool = make()
    let attempts = 0
    const { connect } = pool
    pool.connect = () => (attempts++, connect())
    const detached = new DetachedLeadership({ election: 'e', pool, interval: 1000, log: troublesIn(logged) })
    const notify = setInterval(() => detached._wake(), 5)
    await sleep(1500)
    clearInterval(notify)
    await detached.close()
    assert.ok(attempts <= 2 * 21, `${way}: ${attempts} attempts`) // each term is given back, too
    assert.ok(logged.length <= 1, `${way}: ${logged}`)
  }
})

test('a health check that fails: state, one line, and one withdrawal', async () => {
  const logged = []
  const pool = leader()
  let health = true
  const detached = new DetachedLeadership({ election: 'e', pool, healthCheck: () => health, log: troublesIn(logged) })
  await detached.wait()
  health = false
  detached.resign()
  await until(() => detached.state === 'unhealthy')
  await sleep(1200)
  assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
  health = true
  assert.strictEqual(await detached.wait(60000), 1)
  await detached.close()
  assert.deepStrictEqual(logged, ['unhealthy: the health check says: false', 'all is well again'])
})

// --- servers of ours

const message = (type, ...parts) => {
  const body = Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(`${part}\0`) : part)))
  const head = Buffer.alloc(5)
  head.write(type)
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}
const int16 = (n) => Buffer.from([n >> 8, n & 255])
const int32 = (n) => Buffer.from([n >> 24, n >> 16, n >> 8, n].map((byte) => byte & 255))
const ready = message('Z', Buffer.from('I'))
const errorMessage = (severity, code) =>
  message('E', ...['S', 'V'].map((field) => field + severity), `C${code}`, `Manswer ${code}`, '')

function rowMessages(row) {
  const columns = Object.entries(row)
  const oid = (value) => ({ boolean: 16, number: 701 }[typeof value] ?? 25)
  const text = (value) => Buffer.from(typeof value === 'boolean' ? String(value)[0] : String(value))
  return [
    message('T', int16(columns.length), ...columns.flatMap(([name, value]) =>
      [name, int32(0), int16(0), int32(oid(value)), int16(-1), int32(-1), int16(0)])),
    message('D', int16(columns.length), ...columns.flatMap(([, value]) =>
      (value === null ? [int32(-1)] : [int32(text(value).length), text(value)]))),
  ]
}

/**
 * A server. Options: refuse (the SQLSTATE that each login is told), standby, pid (which pg_backend_pid()
 * tells; the protocol says 7), answer(sql), a row, null, or an error that is thrown. It notes logins and statements.
 */
async function serverOf(options = {}) {
  const self = { options, logins: 0, sent: [], cancels: 0, sockets: new Set() }
  const reply = async (socket, sql) => {
    self.sent.push(sql)
    const first = { pid: options.pid ?? 7, standby: options.standby ?? false, timeout: 0, logged: -1 }
    try {
      const row = /pg_is_in_recovery/.test(sql) ? { ...first, ...options.settings } : await options.answer?.(sql, self)
      socket.write(Buffer.concat([message('1'), message('2'), ...rowMessages(row ?? { void: null }),
        message('C', 'SELECT 1'), ready]))
    } catch (error) {
      socket.write(Buffer.concat([errorMessage('ERROR', error.code), ready]))
    }
  }
  const server = net.createServer((socket) => {
    let data = Buffer.alloc(0)
    let started = false
    let sql
    self.sockets.add(socket)
    socket.on('error', noop).on('data', (chunk) => {
      data = Buffer.concat([data, chunk])
      if (!started && data.length >= 8 && data.readInt32BE(4) === 80877102) {
        self.cancels++
        self.onCancel?.()
        return socket.end()
      }
      if (!started) {
        started = true
        data = Buffer.alloc(0)
        self.logins++
        if (options.refuse) return socket.end(errorMessage('FATAL', options.refuse))
        return socket.write(Buffer.concat([message('R', int32(0)), message('K', int32(7), int32(1)), ready]))
      }
      while (data.length >= 5 && data.length > data.readInt32BE(1)) {
        const end = data.readInt32BE(1) + 1
        const [type, body] = [String.fromCharCode(data[0]), data.subarray(5, end)]
        data = data.subarray(end)
        if (type === 'P') sql = body.toString().split('\0')[1]
        if (type === 'Q') sql = body.toString().split('\0')[0]
        if (type === 'S' || type === 'Q') reply(socket, sql)
        if (type === 'X') self.sent.push('goodbye')
      }
    })
  })
  server.listen(0, options.host ?? '127.0.0.1')
  await once(server, 'listening')
  self.port = server.address().port
  self.at = { host: options.host ?? '127.0.0.1', port: self.port, user: 'app', database: 'app' }
  self.close = () => {
    for (const socket of self.sockets) socket.destroy()
    server.close()
  }
  return self
}

/** Elects whoever campaigns. */
function electing(sql) {
  if (/campaign/.test(sql)) return { term: '1' }
  return /FROM leader_election.renew/.test(sql) ? { term: '1', remaining_ms: '60000', yielding: false } : null
}

test('a session: one address that refuses does not matter, all that do are the end', async () => {
  const [primary, standby, refusing] = await Promise.all([
    serverOf({ answer: electing }), serverOf({ standby: true }), serverOf({ refuse: '28000' })])
  const connect = [refusing.at, standby.at, primary.at]
  const options = { election: 'e', connect, callTimeout: 1000, refusalTimeout: 300, log: noop }
  const leadership = new Leadership(options)
  const events = follow(leadership)
  assert.strictEqual(await leadership.wait(60000), 1)
  for (const socket of primary.sockets) socket.destroy()
  await once(leadership, 'elected')
  assert.deepStrictEqual(events, ['elected 1', 'lost connection lost', 'elected 1'])
  assert.ok(refusing.logins >= 2 && standby.logins >= 2)
  assert.strictEqual(standby.sent.filter((sql) => /set_config|join/.test(sql)).length, 0)

  primary.options.refuse = '28P01'
  for (const socket of primary.sockets) socket.destroy()
  await until(() => /^refused: 28(000|P01)/.test(leadership.state))
  await sleep(1000)
  assert.ok(!leadership.state.startsWith('failed')) // the standby has not refused us
  standby.options.refuse = '3D000'
  await assert.rejects(leadership.wait(), { code: /28000|28P01|3D000/ })
  assert.match(leadership.state, /^failed: /)
  await leadership.close()
  for (const server of [primary, standby, refusing]) server.close()
})

test('a session: an address that cannot be reached has not refused us', async () => {
  const refusing = await serverOf({ refuse: '28P01' })
  const down = { ...refusing.at, port: 1 }
  const options = { election: 'e', callTimeout: 1000, refusalTimeout: 200, log: noop }
  const both = new Leadership({ ...options, connect: [refusing.at, down] })
  assert.strictEqual(await both.wait(1500), null)
  assert.match(both.state, /^(refused: 28P01|unreachable: )/)
  await both.close()
  const began = performance.now()
  const one = new Leadership({ ...options, connect: refusing.at })
  await assert.rejects(one.wait(), { code: '28P01' })
  assert.ok(performance.now() - began >= 200)
  refusing.close()
})

test('a session: what a primary refuses without a break is the end, whatever others say meanwhile', async () => {
  const join = (sql) => {
    if (/join/.test(sql)) throw answers('22023')
  }
  const [primary, standby] = await Promise.all([serverOf({ answer: join }), serverOf({ standby: true })])
  const options = { election: 'e', callTimeout: 1000, refusalTimeout: 500, log: noop }
  const connect = [standby.at, { ...standby.at, port: 1 }, primary.at]
  const began = performance.now()
  await assert.rejects(new Leadership({ ...options, connect }).wait(10000), { code: '22023' })
  assert.ok(performance.now() - began >= 500 && standby.logins > 1)
  let joins = 0
  primary.options.answer = (sql) => {
    if (/join/.test(sql)) throw answers(joins++ % 2 ? '22023' : '42501')
  }
  const broken = new Leadership({ ...options, connect: primary.at })
  assert.strictEqual(await broken.wait(2000), null)
  await broken.close()
  for (const server of [primary, standby]) server.close()
})

test('a session: a password that is missing is a refusal', async () => {
  // The server asks for SCRAM, and pg has nothing to say.
  const server = net.createServer((socket) => {
    const messages = [message('R', int32(10), 'SCRAM-SHA-256', ''), message('R', int32(11), 'r=1')]
    socket.on('error', noop).on('data', () => messages.length && socket.write(messages.shift()))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const connect = { host: '127.0.0.1', port: server.address().port, user: 'app' }
  const leadership = new Leadership({ election: 'e', connect, refusalTimeout: 200, callTimeout: 1000, log: noop })
  await assert.rejects(leadership.wait(60000), { code: '28P01' })
  server.close()
})

test('a session: a pooler is an error at once, and nothing was set; but pooler: session', async () => {
  const pooler = await serverOf({ pid: 8, answer: electing, settings: { timeout: 2 } })
  const options = { election: 'e', connect: pooler.at, log: noop }
  const leadership = new Leadership(options)
  await assert.rejects(leadership.wait(60000), { code: '0A000', message: /^this is a pooler: use Detached/ })
  assert.deepStrictEqual(pooler.sent.filter((sql) => !/is_in_recovery/.test(sql)), ['goodbye'])
  const told = new Leadership({ ...options, pooler: 'session' })
  assert.strictEqual(await told.wait(60000), 1)
  assert.strictEqual(told._slice, 1600) // below statement_timeout
  await told.close()
  assert.ok(!pooler.sent.some((sql) => /set_config/.test(sql)))
  assert.deepStrictEqual(pooler.sent.slice(-2).map((sql) => /leave|goodbye/.exec(sql)[0]), ['leave', 'goodbye'])
  pooler.close()
})

test('a session: a slice is below log_min_duration_statement, unless told so, or that is very short', async () => {
  for (const [logged, slice, expected, lines] of [[1, undefined, 800, 0], [10, undefined, 5000, 0],
    [-1, undefined, 5000, 0], [0, undefined, 5000, 0], [0.1, undefined, 5000, 1], [0.1, 3000, 3000, 0]]) {
    const said = []
    const server = await serverOf({ answer: electing, settings: { logged } })
    const leadership = new Leadership({ election: 'e', connect: server.at, slice, log: troublesIn(said) })
    await leadership.wait(60000)
    assert.strictEqual(leadership._slice, expected)
    leadership.resign()
    await once(leadership, 'elected') // over another connection
    assert.strictEqual(said.length, lines, String(said))
    await leadership.close()
    server.close()
  }
})

test('a session: close() cancels a campaign, leaves, and says goodbye', async () => {
  const server = await serverOf({
    answer: (sql, self) => /campaign/.test(sql) && new Promise((resolve, reject) => {
      self.onCancel = () => setTimeout(() => reject(answers('57014')), 20)
    }),
  })
  const leadership = new Leadership({ election: 'e', connect: server.at, log: noop })
  await until(() => server.onCancel)
  const began = performance.now()
  await leadership.close()
  assert.ok(performance.now() - began < 4000)
  assert.strictEqual(server.cancels, 1)
  assert.deepStrictEqual(server.sent.slice(-2).map((sql) => /leave|goodbye/.exec(sql)[0]), ['leave', 'goodbye'])
  server.close()
})

test('a session: close() while it logs in, or joins: no campaign is begun', async () => {
  for (const last of ['pg_is_in_recovery', 'join']) {
    let leadership
    const server = await serverOf({
      answer: (sql) => sql.includes(last) && leadership.close() && null,
      get settings() {
        if (last === 'pg_is_in_recovery') leadership.close()
        return {}
      },
    })
    leadership = new Leadership({ election: 'e', connect: server.at, log: noop })
    await until(() => leadership._ended)
    assert.ok(!server.sent.some((sql) => sql.includes('campaign')), last)
    assert.deepStrictEqual(server.sent.slice(-2).map((sql) => /leave|goodbye/.exec(sql)?.[0]), ['leave', 'goodbye'])
    server.close()
  }
})

test('a session: close() ends within callTimeout, although the server answers nothing', async () => {
  for (const silent of ['campaign', 'join', 'is_in_recovery']) {
    const server = await serverOf({ answer: (sql) => sql.includes(silent) && new Promise(noop) })
    if (silent === 'is_in_recovery') server.options.settings = new Proxy({}, { ownKeys() { throw answers('57014') } })
    const leadership = new Leadership({ election: 'e', connect: server.at, callTimeout: 200, slice: 60000, log: noop })
    await until(() => server.sent.some((sql) => sql.includes(silent)))
    const began = performance.now()
    await leadership.close()
    assert.ok(performance.now() - began < 3000, silent)
    await until(() => [...server.sockets].every((socket) => socket.destroyed))
    server.close()
  }
})

test('a session: 55P03, 57014 and 40001 of a renewal leave the leadership as it is', async () => {
  let busy = 0
  const server = await serverOf({
    answer: (sql) => {
      if (!/FROM leader_election.renew/.test(sql)) return electing(sql)
      if (busy++ % 2) throw answers(['55P03', '57014', '40001'][(busy / 2) % 3])
      return { term: '1', remaining_ms: '60000', yielding: false }
    },
  })
  const leadership = renewingSoon(new Leadership({ election: 'e', connect: server.at, log: noop }))
  const events = follow(leadership)
  await leadership.wait()
  await until(() => busy >= 8)
  assert.strictEqual(leadership.state, 'leads')
  await leadership.close()
  assert.deepStrictEqual(events, ['elected 1', 'lost closed'])
  assert.strictEqual(server.logins, 1)
  server.close()
})

/** With these variables instead of PG... for as long as the code runs. */
async function withEnv(variables, code) {
  const before = { ...process.env }
  for (const name of Object.keys(process.env)) if (READ.test(name)) delete process.env[name]
  Object.assign(process.env, variables)
  try {
    return await code()
  } finally {
    for (const name of Object.keys(process.env)) delete process.env[name]
    Object.assign(process.env, before)
  }
}

/** Leads somewhere, with these variables and options. */
const leadsWith = (variables, options) => withEnv(variables, async () => {
  const leadership = new Leadership({ election: 'e', callTimeout: 1000, log: noop, ...options })
  const term = await leadership.wait(60000)
  await leadership.close()
  assert.strictEqual(term, 1)
})

test('where to connect: lists, names with several addresses, a service', async () => {
  const [primary, standby] = await Promise.all([serverOf({ answer: electing }), serverOf({ standby: true })])
  const ports = `${standby.port},${primary.port}`
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'service'))
  const file = path.join(folder, 'pg_service.conf')
  fs.writeFileSync(file, `# comment\n[other]\nhost=nowhere.invalid\n\n[app]\nhost=127.0.0.1,127.0.0.1
port=${ports}\nuser=app\ndbname=app\nsslmode=disable\nconnect_timeout=2\noptions=-c a=b\n[third]\npassfile=x\n`)
  const either = { PGHOST: '127.0.0.1,127.0.0.1', PGPORT: ports, PGUSER: 'app' }

  await leadsWith(either)
  await leadsWith({ ...either, PGHOST: 'a.invalid,b.invalid', PGHOSTADDR: '127.0.0.1,127.0.0.1' })
  await leadsWith({}, { connect: { host: '127.0.0.1,127.0.0.1', port: ports, user: 'app' } })
  await leadsWith({ PGPORT: String(primary.port) }, { connect: 'postgresql://app@127.0.0.1/app' })
  await leadsWith({}, { connect: `postgresql:///app?host=127.0.0.1,127.0.0.1&port=${ports}&user=app` })
  await leadsWith({ PGSERVICE: 'app', PGSERVICEFILE: file })
  await leadsWith({ PGSERVICEFILE: file }, { connect: { service: 'app' } })
  await leadsWith({ PGSYSCONFDIR: folder, HOME: folder }, { connect: [{ service: 'app' }] })
  await leadsWith({ PGSERVICE: 'other', PGSERVICEFILE: file }, { connect: { ...primary.at, user: 'app' } })

  await withEnv({ PGSERVICEFILE: file }, () => {
    const make = (connect) => () => new Leadership({ election: 'e', connect })
    assert.throws(make({ service: 'missing' }), /no service "missing" in .*pg_service.conf/)
    assert.throws(make({ service: 'third' }), /pg has no setting passfile/)
    assert.throws(make({ service: 'app', connectionString: 'postgresql://a' }), /say one of them/)
    assert.throws(make('postgresql://a/app?service=app'), /say one of them/)
    assert.throws(make({ host: 'a,b,c', port: '1,2' }), /3 hosts, and 2 ports/)
    assert.throws(make('postgresql://a:1,b:2/app'), /URL/i)
    assert.throws(() => new DetachedLeadership({ election: 'e', listen: { service: 'missing' } }), /no service/)
    assert.throws(() => new Leadership({}), /election/)
  })
  fs.rmSync(folder, { recursive: true })
  for (const server of [primary, standby]) server.close()
})

test('each address of a name is tried, and names are resolved anew', async () => {
  const primary = await serverOf({ answer: electing })
  let now = ['127.0.0.2', '127.0.0.1'] // nothing listens at the first
  const names = []
  mock.method(dns.promises, 'lookup', async (name) => {
    names.push(name)
    if (name === 'gone') throw new Error('ENOTFOUND')
    return now.map((address) => ({ address, family: 4 }))
  })
  const connect = { ...primary.at, host: 'gone,db' }
  const leadership = new Leadership({ election: 'e', connect, callTimeout: 1000, log: noop })
  assert.strictEqual(await leadership.wait(60000), 1)
  now = ['127.0.0.1']
  for (const socket of primary.sockets) socket.destroy()
  await once(leadership, 'elected')
  await leadership.close()
  mock.restoreAll()
  assert.ok(names.filter((name) => name === 'db').length >= 2)
  primary.close()
})

test('an outage of name lookup begins the while of its refusals anew', async (t) => {
  let works = true
  t.mock.method(dns.promises, 'lookup', async (name) => {
    if (name === 'db' && !works) throw new Error('EAI_AGAIN')
    return [1, 2].map((last) => ({ address: `127.0.${name.length}.${last}`, family: 4 }))
  })
  const uptime = os.uptime
  const later = (s) => t.mock.method(os, 'uptime', () => uptime() + s)
  const no = answers('28P01')
  const addresses = new Addresses([{ host: 'db', port: 1 }, { host: 'other', port: 1 }], 60000)
  const round = async () => {
    do {
      const address = await addresses.next(1000)
      addresses.refused(address, address.address === 'db' ? new Error('no such host') : no)
    } while (addresses.areLeft)
    return addresses.verdict
  }
  assert.strictEqual(await round(), null)
  later(10000) // more than other tests have said, for the clock does not go back
  works = false
  assert.strictEqual(await round(), null)
  works = true
  assert.strictEqual(await round(), null, 'db has refused only just now')
  later(20000)
  assert.strictEqual(await round(), no)
})

test('an address of a name has the password and the certificate of that name', async () => {
  const primary = await serverOf({ answer: electing })
  mock.method(dns.promises, 'lookup', async () => [{ address: '127.0.0.1', family: 4 }])
  const leadership = new Leadership({ election: 'e', connect: { ...primary.at, host: 'db' }, log: noop })
  await leadership.wait(60000)
  const { client } = leadership._session
  assert.strictEqual(client.connectionParameters.host, 'db') // where pgpass looks
  assert.strictEqual(client.host, '127.0.0.1')
  await leadership.close()

  const ssl = { ca: 'ca', key: 'secret' }
  const secure = new Leadership({ election: 'e', connect: { ...primary.at, host: 'db', ssl }, log: noop })
  await until(() => secure._session)
  assert.strictEqual(secure._session.client.connection.ssl.servername, 'db')
  assert.strictEqual(secure._session.client.connection.ssl.key, 'secret')
  await secure.close()
  mock.restoreAll()
  primary.close()
})

test('the name: host, process and four digits; in Kubernetes the pod', async () => {
  const name = (variables) => withEnv(variables, () => new FakeLeadership().candidate)
  const host = os.hostname().replace(/\W/g, '.')
  assert.match(await name({}), new RegExp(`^${host}-${process.pid}-[0-9a-f]{4}$`))
  assert.match(await name({ POD_NAME: 'pod-7' }), new RegExp(`^${host}-`))
  const inPod = { KUBERNETES_SERVICE_HOST: '10.0.0.1', HOSTNAME: 'host-7' }
  assert.strictEqual(await name(inPod), `host-7-${process.pid}`)
  assert.strictEqual(await name({ ...inPod, POD_NAME: 'pod-7' }), `pod-7-${process.pid}`)
  assert.strictEqual((await name({ ...inPod, POD_NAME: 'x'.repeat(250) })).length, 200)
  const pid = Object.getOwnPropertyDescriptor(process, 'pid')
  Object.defineProperty(process, 'pid', { ...pid, value: 1, configurable: true })
  assert.strictEqual(await name({ ...inPod, POD_NAME: 'pod-7' }), 'pod-7')
  Object.defineProperty(process, 'pid', pid)
})

const server = { skip: !process.env.TEST_SERVER && 'TEST_SERVER=1 if PGHOST and so on are a server to try on' }

// An application's pool may make something else than a string of int8.
const types = { getTypeParser: (oid, ...more) => (oid === 20 ? BigInt : pg.types.getTypeParser(oid, ...more)) }

/** A client of its own election, or of another's, which writes down what its work does. */
function worker(kind, order, name, work, election = `test ${process.pid} ${Math.random()}`) {
  const pool = new pg.Pool({ max: 2, types })
  const options = { election, candidate: name, pool, interval: 100, slice: 1000, log: noop }
  const leadership = new { Leadership, DetachedLeadership }[kind](options)
  leadership.on('lost', (reason) => order.push(`${name} lost: ${reason}`))
  leadership.running = leadership.run(async (term, signal) => {
    order.push(`${name} begins`)
    try {
      await work(term, signal, pool)
    } finally {
      order.push(`${name} ends`)
    }
  })
  leadership.end = () => leadership.close().then(() => leadership.running).finally(() => pool.end())
  return leadership
}

/** Commits a transaction that is fenced by what this client knows. */
async function fencedWrite(leadership, pool) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    await leadership.fenced(client)
    await client.query('COMMIT')
  } finally {
    client.release(true)
  }
}

for (const kind of ['Leadership', 'DetachedLeadership']) {
  test(`${kind}, with a server: run() hands over when the work has ended`, server, () => withEnv(ofServer, async () => {
    const order = []
    const forever = (leads) => async (term, signal, pool) => {
      await fencedWrite(leads(), pool)
      if (!signal.aborted) await once(signal, 'abort')
      await sleep(200) // the lease is not given back before
    }
    const one = worker(kind, order, 'one', forever(() => one))
    const term = await one.wait(60000)
    const two = worker(kind, order, 'two', forever(() => two), one.election)
    assert.strictEqual(await two.wait(300), null)
    await one.end()
    assert.ok(await two.wait(60000) > term)
    await until(() => order.includes('two begins'))
    await two.end()
    assert.deepStrictEqual(order, ['one begins', 'one lost: closed', 'one ends',
      'two begins', 'two lost: closed', 'two ends'])
  }))

  test(`${kind}, with a server: run() goes on in another term after each way to lose`, server, () => withEnv(ofServer, async () => {
    const order = []
    const terms = []
    const leadership = worker(kind, order, 'one', async (term, signal, pool) => {
      terms.push(term)
      if (terms.length === 1) return // resigns
      if (terms.length === 2) { // what the client does not know yet
        const end = kind === 'Leadership' ? 'leave($1)' : 'release($1, $2)'
        const from = kind === 'Leadership' ? leadership._session.client : pool
        await from.query(`SELECT leader_election.${end}`, [leadership.election, term].slice(0, end.match(/\$/g).length))
        await fencedWrite(leadership, pool)
      }
      await once(signal, 'abort')
    })
    await until(() => terms.length === 3)
    await leadership.end()
    assert.ok(terms[0] < terms[1] && terms[1] < terms[2], String(terms))
    assert.deepStrictEqual(order.filter((text) => text.includes('lost')),
      ['one lost: resigned', 'one lost: not renewed', 'one lost: closed'])
  }))

  test(`${kind}, with a server: work that fails is the end, and another leads`, server, () => withEnv(ofServer, async () => {
    const order = []
    const one = worker(kind, order, 'one', async () => {
      throw new Error('work')
    })
    one.on('error', noop)
    await assert.rejects(one.running, { message: 'work' })
    const two = worker(kind, order, 'two', (term, signal) => once(signal, 'abort'), one.election)
    assert.notStrictEqual(await two.wait(60000), null)
    await two.end()
    await assert.rejects(one.end(), { message: 'work' })
    assert.ok(order.includes('one lost: error'))
  }))
}

test('can be imported as a module', async () => {
  assert.strictEqual((await import('./leader_election.js')).Leadership, Leadership)
})
