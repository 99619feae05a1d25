// Tests without a server: what FakeLeadership and SoleLeadership promise, events, run(), the clock.
// With one, if TEST_SERVER is set (PGHOST and so on say where): run(), over real connections.
'use strict'
const assert = require('node:assert')
const { EventEmitter, once } = require('node:events')
const os = require('node:os')
const { test, mock } = require('node:test')
const { setTimeout: sleep } = require('node:timers/promises')
const pg = require('pg')
const clients = require('./leader_election.js')
const { DetachedLeadership, FakeLeadership, Leadership, NotLeader, SoleLeadership } = clients

const noop = () => {}

async function until(condition) {
  const end = performance.now() + 5000
  while (!condition()) {
    assert.ok(performance.now() < end, `in time: ${condition}`)
    await sleep(5)
  }
}

/** A pool whose server is answer(sql, values), which gives rows or throws. */
function poolOf(answer) {
  const pool = { sent: [], released: [] }
  pool.connect = async () => Object.assign(new EventEmitter(), {
    query: async (text, values) => {
      pool.sent.push(text.match(/leader_election\.(\w+)/)[1])
      return { rows: await answer(pool.sent.at(-1), values) }
    },
    release: (broken) => pool.released.push(broken),
  })
  return pool
}

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

test('term is null at once, and handlers run one at a time', async () => {
  const fake = new FakeLeadership()
  const order = []
  fake.on('elected', async () => {
    await sleep(20)
    order.push('elected has returned')
  })
  fake.on('lost', () => order.push(`lost, term ${fake.term}`))
  fake.elect()
  const lost = fake.lose()
  assert.strictEqual(fake.term, null)
  await lost
  assert.deepStrictEqual(order, ['elected has returned', 'lost, term null'])
})

test('a handler that fails is logged, and the next one called', async () => {
  const logged = []
  const fake = new FakeLeadership({ log: (message) => logged.push(message) })
  fake.on('elected', () => {
    throw new Error('handler')
  })
  const events = follow(fake)
  await fake.elect()
  assert.deepStrictEqual(events, ['elected 1'])
  assert.deepStrictEqual(logged, ["a handler of 'elected' failed:"])
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
    const log = (message) => logged.push(message)
    const detached = new DetachedLeadership({ election: 'e', pool, callTimeout: 30, log })
    if (kind === 'work') detached.run(hangs)
    else detached.on('lost', hangs)
    await detached.wait()
    await sleep(50)
    detached.resign()
    await sleep(10)
    assert.deepStrictEqual(logged, [])
    await until(() => logged.length > 0)
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
  for (const sick of [false, 'throws', 'hangs']) {
    let health = true
    const healthCheck = async () => {
      if (health === 'throws') throw new Error('sick')
      if (health === 'hangs') await new Promise(noop)
      return health
    }
    const pool = poolOf((call) => (call === 'acquire' ? [{ term: '1', remaining_ms: '300', yielding: false }] : []))
    const detached = new DetachedLeadership({ election: 'e', pool, healthCheck, callTimeout: 500, log: noop })
    await detached.wait()
    health = sick
    assert.deepStrictEqual(await once(detached, 'lost'), [sick === 'hangs' ? 'expired' : 'unhealthy'])
    await detached.close()
    assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
  }
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
  const sole = new SoleLeadership({ election: 'e' })
  await once(sole, 'elected')
  assert.strictEqual(sole.leads, true)
  assert.strictEqual(sole.term, null)
  await assert.rejects(sole.fenced(), /no term/)
  await sole.close()
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
  const pool = poolOf((call) => (call === 'leave' ? [] : [{ term: '1', remaining_ms: '10000', yielding: false }]))
  const detached = new DetachedLeadership({ election: 'e', pool })
  await detached.wait()
  const uptime = os.uptime
  mock.method(os, 'uptime', () => uptime() + 9)
  assert.strictEqual(detached.term, 1)
  os.uptime.mock.mockImplementation(() => uptime() + 11)
  assert.strictEqual(detached.term, null)
  mock.restoreAll()
  await detached.close()
})

test('the deadline is looked at each second: timers stand still while the machine sleeps', async () => {
  const pool = poolOf((call) => (call === 'leave' ? [] : [{ term: '1', remaining_ms: '60000', yielding: false }]))
  const detached = new DetachedLeadership({ election: 'e', pool })
  await detached.wait()
  const uptime = os.uptime
  mock.method(os, 'uptime', () => uptime() + 600)
  const lost = await Promise.race([once(detached, 'lost'), sleep(1500)])
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

  const began = performance.now()
  const { status, stdout } = require('node:child_process').spawnSync(process.execPath, ['-e', `
    const { FakeLeadership } = require(${JSON.stringify(require.resolve('./leader_election.js'))})
    const fake = new FakeLeadership()
    fake.run(() => new Promise(() => {}))
    fake.wait().then(console.log)
    fake.elect()`])
  assert.strictEqual(status, 0)
  assert.strictEqual(String(stdout), '1\n')
  assert.ok(performance.now() - began < 3000)
})

test('a grant whose answer comes too late, or after close(), is released', async () => {
  for (const remaining of ['30', '9000']) {
    const pool = poolOf(async (call) => {
      if (call === 'acquire') await sleep(50)
      return call === 'acquire' ? [{ term: '1', remaining_ms: remaining, yielding: false }] : []
    })
    const detached = new DetachedLeadership({ election: 'e', pool })
    const events = follow(detached)
    await until(() => pool.sent.length > 0)
    if (remaining === '9000') detached.close()
    await until(() => pool.sent.includes('release'))
    await detached.close()
    assert.deepStrictEqual(pool.sent, ['acquire', 'release', 'leave'])
    assert.deepStrictEqual(events, [])
  }
})

test('errors of renew: term is kept until the deadline; a call that hangs loses its connection', async () => {
  let renewals = 0
  const pool = poolOf(async (call) => {
    if (call === 'acquire') return [{ term: '1', remaining_ms: '600', yielding: false }]
    if (call !== 'renew') return []
    if (++renewals === 2) await sleep(5000, null, { ref: false })
    throw Object.assign(new Error('busy'), { code: '55P03', severity: 'ERROR' })
  })
  const detached = new DetachedLeadership({ election: 'e', pool, callTimeout: 100, log: noop })
  await detached.wait()
  const began = performance.now()
  assert.deepStrictEqual(await once(detached, 'lost'), ['expired'])
  assert.ok(performance.now() - began > 500)
  assert.deepStrictEqual(pool.released.slice(0, 4), [false, false, true, false])
  await detached.close()
})

test('a call that got its connection too late is not sent', async () => {
  const pool = poolOf(() => [{ term: '1', remaining_ms: '9000', yielding: false }])
  const connect = pool.connect
  pool.connect = () => sleep(80).then(connect)
  const detached = new DetachedLeadership({ election: 'e', pool, callTimeout: 30, log: noop })
  await until(() => pool.released.length > 0)
  assert.deepStrictEqual(pool.sent, [])
  assert.deepStrictEqual(pool.released, [false])
  await detached.close()
})

test('a failover is lost and elected, and the new term is given back', async () => {
  const released = []
  const pool = poolOf((call, values) => {
    if (call === 'release') released.push(values[1])
    if (call === 'acquire') return [{ term: '1', remaining_ms: '300', yielding: false }]
    return call === 'renew' ? [{ term: '4194305', remaining_ms: '9000', yielding: false }] : []
  })
  const detached = new DetachedLeadership({ election: 'e', pool })
  const events = follow(detached)
  await once(detached, 'lost')
  assert.strictEqual(await detached.wait(), 4194305)
  detached.resign()
  await detached.close()
  assert.deepStrictEqual(events, ['elected 1', 'lost failover', 'elected 4194305', 'lost resigned'])
  assert.deepStrictEqual(released, [4194305])
})

test('resign() while a renewal is under way gives back the term of its answer', async () => {
  const released = []
  const gate = new EventEmitter()
  const pool = poolOf(async (call, values) => {
    if (call === 'release') released.push(values[1])
    if (call === 'renew') await once(gate, 'open')
    if (call === 'acquire') return [{ term: '1', remaining_ms: '600', yielding: false }]
    return call === 'renew' ? [{ term: '4194305', remaining_ms: '9000', yielding: false }] : []
  })
  const detached = new DetachedLeadership({ election: 'e', pool })
  await detached.wait()
  await until(() => pool.sent.includes('renew'))
  detached.resign()
  gate.emit('open')
  await detached.close()
  assert.deepStrictEqual(released, [4194305])
})

test('a fatal error: wait() rejects, or the error event, and never silence', async () => {
  const missing = () => {
    throw Object.assign(new Error('schema "leader_election" does not exist'), { code: '3F000' })
  }
  const waited = new DetachedLeadership({ election: 'e', pool: poolOf(missing) })
  await assert.rejects(waited.wait(), { code: '3F000', message: /CREATE EXTENSION/ })
  const heard = new DetachedLeadership({ election: 'e', pool: poolOf(missing) })
  const [error] = await once(heard, 'error')
  assert.strictEqual(error.code, '3F000')
  await assert.rejects(heard.wait(), error)
  await heard.close()

  const { status, stderr } = require('node:child_process').spawnSync(process.execPath, ['-e', `
    const { DetachedLeadership } = require(${JSON.stringify(require.resolve('./leader_election.js'))})
    const pool = { connect: () => Promise.reject(Object.assign(new Error('no'), { code: '3F000' })) }
    new DetachedLeadership({ election: 'e', pool })`])
  assert.notStrictEqual(status, 0)
  assert.match(String(stderr), /CREATE EXTENSION/)
})

test('a fatal error, and an error listener that throws: wait() and run() reject all the same', async () => {
  const pool = poolOf(() => {
    throw Object.assign(new Error('no'), { code: '3F000' })
  })
  const detached = new DetachedLeadership({ election: 'e', pool })
  detached.on('error', () => {
    throw new Error('listener')
  })
  await assert.rejects(detached.run(noop))
  await assert.rejects(Promise.race([detached.wait(), sleep(500)]), { code: '3F000' })
  await detached.close()
})

test('remaining_ms as an application may have int8 parsed', async () => {
  for (const remaining of [9000n, '9000', 9000]) {
    const pool = poolOf((call) => (call === 'acquire' ? [{ term: 3n, remaining_ms: remaining, yielding: false }] : []))
    const detached = new DetachedLeadership({ election: 'e', pool, log: noop })
    assert.strictEqual(await detached.wait(300), 3)
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

test('listen with a bad config: logged, and we lead all the same', async () => {
  const logged = []
  const pool = poolOf((call) => (call === 'acquire' ? [{ term: '1', remaining_ms: '9000', yielding: false }] : []))
  const log = (message) => logged.push(message)
  const listen = { get host() { throw new Error('bad config') } }
  const detached = new DetachedLeadership({ election: 'e', pool, log, listen })
  assert.strictEqual(await detached.wait(), 1)
  await detached.close()
  assert.deepStrictEqual(logged, ['cannot listen, trying again:'])
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
  test(`${kind}, with a server: run() hands over when the work has ended`, server, async () => {
    const order = []
    const forever = (leads) => async (term, signal, pool) => {
      await fencedWrite(leads(), pool)
      if (!signal.aborted) await once(signal, 'abort')
      await sleep(200) // the lease is not given back before
    }
    const one = worker(kind, order, 'one', forever(() => one))
    const term = await one.wait(5000)
    const two = worker(kind, order, 'two', forever(() => two), one.election)
    assert.strictEqual(await two.wait(300), null)
    await one.end()
    assert.ok(await two.wait(5000) > term)
    await until(() => order.includes('two begins'))
    await two.end()
    assert.deepStrictEqual(order, ['one begins', 'one lost: closed', 'one ends',
      'two begins', 'two lost: closed', 'two ends'])
  })

  test(`${kind}, with a server: run() goes on in another term after each way to lose`, server, async () => {
    const order = []
    const terms = []
    const leadership = worker(kind, order, 'one', async (term, signal, pool) => {
      terms.push(term)
      if (terms.length === 1) return // resigns
      if (terms.length === 2) { // what the client does not know yet
        const end = kind === 'Leadership' ? 'leave($1)' : 'release($1, $2)'
        const from = kind === 'Leadership' ? leadership._client : pool
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
  })

  test(`${kind}, with a server: work that fails is the end, and another leads`, server, async () => {
    const order = []
    const one = worker(kind, order, 'one', async () => {
      throw new Error('work')
    })
    one.on('error', noop)
    await assert.rejects(one.running, { message: 'work' })
    const two = worker(kind, order, 'two', (term, signal) => once(signal, 'abort'), one.election)
    assert.notStrictEqual(await two.wait(2000), null)
    await two.end()
    await assert.rejects(one.end(), { message: 'work' })
    assert.ok(order.includes('one lost: error'))
  })
}

test('can be imported as a module', async () => {
  assert.strictEqual((await import('./leader_election.js')).Leadership, Leadership)
})
