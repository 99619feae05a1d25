/**
 * A client of the PostgreSQL extension leader_election, for Node.js 18 and later
 * and npm's pg 8. One file: copy it, or install it as a package.
 *
 * Invariant: `term` is never given out after the deadline, which is counted from
 * the *sending* of the last answered renewal; every 'elected' has exactly one
 * 'lost'; 'lost' is reported, and its handlers have returned, before the lease is
 * given back.
 *
 * Everything runs in the event loop of the process. A loop that is blocked renews
 * nothing. When it goes on, `term` is null by the clock before any handler runs,
 * but nobody has checked what the blocking code itself did meanwhile: fence the
 * writes (`fenced()`, or send the term along).
 */
'use strict'

const { AsyncLocalStorage } = require('node:async_hooks')
const { EventEmitter } = require('node:events')
const os = require('node:os')

// These would be answered the same again: stop, and tell.
const FATAL = /^(28...|3D000|3F000|42883|42P01|42501|22023|0A000|25001|LE003)$/
// An error of the server. (Node's codes, like EPIPE, begin with E. No SQLSTATE does.)
const SQLSTATE = /^(?!E)[0-9A-Z]{5}$/

/** We do not lead. The code is that of the server's error of the same meaning. */
class NotLeader extends Error { code = 'LE001' }
class TimedOut extends Error {}
const noop = () => {}

/**
 * Milliseconds on a clock that goes on while the machine sleeps. The monotonic
 * clock of Node stands still then (on Linux), and a lease that ran out during the
 * sleep would look valid. os.uptime() goes on, but in steps of 10 ms: it tells for
 * how long the machine slept. A paused virtual machine does not know: fence.
 */
function clock() {
  const gap = os.uptime() * 1000 - performance.now() - clock.slept
  if (gap > 50) clock.slept += gap
  return performance.now() + clock.slept
}
clock.slept = os.uptime() * 1000 - performance.now() // before this process began: harmless

/** The outcome of promise, unless ms pass or signal is aborted before. */
async function bounded(promise, ms, signal) {
  let stop
  const stopped = new Promise((resolve, reject) => {
    stop = () => reject(signal?.aborted ? signal.reason : new TimedOut(`no answer in ${Math.round(ms)} ms`))
  })
  // If the event loop was blocked, the answer may be there: setImmediate comes after reading it.
  const timer = ms < 2 ** 31 && setTimeout(() => setImmediate(stop), ms)
  signal?.aborted ? stop() : signal?.addEventListener('abort', stop)
  try {
    return await Promise.race([promise, stopped])
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', stop)
  }
}
const pause = (ms, signal) => bounded(new Promise(noop), ms, signal).catch(noop)

// A wrong password may fail on the client's side already.
const isFatal = (error) => FATAL.test(error.code) || /^SASL/.test(error.message)
const isOfServer = (error) => SQLSTATE.test(error.code)
/** 0.1 s, doubled with each failure. */
const backOff = (failures, most) => Math.min(100 * 2 ** failures, most)
/** The leader gave up, and its connection is as good as before. */
const isOrderly = (reason) => reason === 'resigned' || reason === 'yielded'

function explain(error) {
  const missing = /^(3F000|42883)$/.test(error.code) ? 'the database lacks the extension (CREATE EXTENSION leader_election): ' : ''
  return Object.assign(new Error(`leader_election: ${missing}${error.message}`, { cause: error }), { code: error.code })
}

/** A config of pg, a URL, a host, or an array of these; `host` and `port` of a config may be arrays, too. */
function listHosts(connect) {
  require('pg') // it is missing: tell the constructor's caller
  return [connect ?? {}].flat().flatMap((one) => {
    if (typeof one === 'string') return one.includes('://') ? { connectionString: one } : { host: one }
    if (one.query) throw new TypeError('connect: a config of pg is needed, for a connection of our own; not a client or a pool')
    return [one.host].flat().map((host, i) => ({ ...one, host, port: [one.port].flat()[i] ?? [one.port].flat()[0] }))
  })
}

/** A client of pg, connected to the first host at which begin(client) succeeds. A standby refuses it (25006). */
async function connect(hosts, ms, signal, begin) {
  const { Client } = require('pg')
  let failure
  for (const host of hosts) {
    const client = new Client({ ...host, keepAlive: true, keepAliveInitialDelayMillis: 5000 }).on('error', noop)
    client.connectionParameters.query_timeout = 0 // pg's leaves the call going on at the server
    try {
      await bounded(client.connect(), ms, signal)
      await begin((text, values) => bounded(client.query(text, values), ms, signal), client)
      return client
    } catch (error) {
      client.connection.stream.destroy()
      failure = error
      if (signal.aborted || isFatal(error)) break
    }
  }
  throw failure
}

/** The candidates whose handlers are running: in these close() and resign() do not wait, for they would wait for themselves. */
const handling = new AsyncLocalStorage()

/**
 * @typedef {object} Options  Times are in milliseconds.
 * @property {string} election
 * @property {string} [candidate]  Default: host name, process ID and a random part.
 * @property {number} [rank]
 * @property {object} [metadata]  What view status shows of the leader.
 * @property {() => boolean | Promise<boolean>} [healthCheck]  Has the working loop made a turn
 *   lately? Unless it says true, we do not stand, and the lease is not renewed.
 * @property {number} [callTimeout=5000]  How long a call may take.
 * @property {AbortSignal} [signal]  Closes.
 * @property {(message: string, error: Error) => void} [log]  Default: console.error.
 */

/**
 * What the four kinds share. Events: 'elected' (term), 'lost' (reason), 'yield' (term), 'error' (error).
 * One handler runs at a time; if it returns a promise, the next event waits for that. So start the
 * work in 'elected', but do not await its end there.
 * @abstract
 */
class Candidate extends EventEmitter {
  /** @param {Options} options */
  constructor(options) {
    super()
    if (typeof options?.election !== 'string') throw new TypeError('election: a string is needed')
    const { election, candidate, rank = null, metadata = null, healthCheck, callTimeout = 5000, signal, log } = options
    this.election = election
    this.candidate = candidate ?? `${os.hostname()}-${process.pid}-${Math.random().toString(36).slice(2, 8)}`
    /** How many times this client was elected. */
    this.changes = 0
    this._standing = [rank, metadata && JSON.stringify(metadata)]
    this._check = healthCheck
    this._callTimeout = callTimeout
    this._log = log ?? ((message, error) => console.error(`leader_election ${election}: ${message}:`, error.message))
    this._lead = null // the leadership that has begun and is not lost
    this._queue = Promise.resolve() // settled when the handlers of all events so far have returned
    this._waiting = new Set() // what tells wait() that something has changed
    this._closing = new AbortController()
    this._closing.signal.addEventListener('abort', () => this._change())
    this._cut = new AbortController() // ends what close() waits for too long
    const onAbort = () => this.close()
    signal?.addEventListener('abort', onAbort)
    // Begins when the constructors have returned.
    this._over = Promise.resolve().then(() => this._live()).finally(() => signal?.removeEventListener('abort', onAbort))
    this._over.catch(noop)
    if (signal?.aborted) this.close()
  }

  /** Do we lead now? Never blocks. */
  get leads() { return this._lead !== null && this._clock() < this._lead.deadline }

  /** The term in which we lead now, else null. Never blocks. @returns {number | null} */
  get term() { return this.leads ? this._lead.term : null }

  /**
   * Waits until we lead: the term; null after the timeout (in ms), or if we are closed. Rejects with
   * the fatal error if there is one, and with the reason of an aborted signal.
   * @param {number | { timeout?: number, signal?: AbortSignal }} [limit]
   * @returns {Promise<number | null>}
   */
  async wait(limit = {}) {
    const { timeout = Infinity, signal } = typeof limit === 'number' ? { timeout: limit } : limit
    let told
    const change = new Promise((resolve) => this._waiting.add((told = resolve)))
    try {
      if (!this.leads && !this._closing.signal.aborted) await bounded(change, timeout, signal)
    } catch (error) {
      if (!(error instanceof TimedOut)) throw error
      return null
    } finally {
      this._waiting.delete(told)
    }
    if (this._fatal) throw this._fatal
    // Lost again already?
    return this.leads || this._closing.signal.aborted ? this.term : this.wait(limit)
  }

  /**
   * Runs the work in each term, until we are closed. Its signal is aborted when leadership is lost, and
   * the lease is given back after its end. If it ends while we lead, we resign and stand again. If it
   * fails while we lead, we close, and this promise rejects with its error.
   * @param {(term: number | null, signal: AbortSignal) => any} work
   */
  async run(work) {
    if (this._work) throw new Error('run: one at a time')
    this._work = work
    if (this._lead) this._begin(this._lead)
    await this._over
    if (this._failure) throw this._failure.error
  }

  /**
   * Fences the caller's open transaction: it commits only if we lead in this very term then, else it
   * fails with LE002. LE001: we do not lead.
   * @param {{ query(text: string, values: any[]): Promise<any> }} client  Of pg, in a transaction; not a pool.
   */
  async fenced(client) {
    const { term } = this
    if (!this.leads) throw new NotLeader(`this candidate does not lead ${this.election}`)
    await this._fence(client, term)
  }

  async _fence(client, term) {
    if (client.totalCount !== undefined) throw new TypeError('fenced: give the client of the transaction, not the pool')
    if (client.getTransactionStatus?.() === 'I') throw new Error('fenced: no transaction is open; await BEGIN first')
    await client.query('SELECT leader_election.assert_leader($1, $2::pg_catalog.int8)', [this.election, term])
  }

  /**
   * Gives up leadership, and stands again after a second. True if we led. Resolves when the lease is
   * given back (in a handler, or in the work of run(): at once).
   */
  async resign() {
    const lead = this._lead
    if (!this.leads) return false
    this._lose('resigned')
    if (!handling.getStore()?.has(this)) await lead.back
    return true
  }

  /** Gives up, withdraws, ends connections; resolves then (in a handler, or in the work of run(): at once). */
  async close() {
    if (!this._closing.signal.aborted) {
      this._closing.abort(new Error('closed'))
      this._lose('closed')
      this._queue.then(() => setTimeout(() => this._cut.abort(new TimedOut('closed')), this._callTimeout).unref())
    }
    if (!handling.getStore()?.has(this)) await this._over.catch(noop)
  }

  // What the kinds do in their own ways: stand for a while (a grant, or null), renew (the same), give
  // the lease of a lost leadership back, withdraw; `own`: a connection of our own is used.
  _clock() { return clock() }
  async _giveBack() {}
  async _withdraw() {}

  /** The whole life. Rejects with the fatal error. */
  async _live() {
    try {
      await this._engine()
    } catch (error) {
      this._fatal = explain(error)
    }
    await this._queue
    await this._withdraw().catch((error) => this._log('cannot withdraw', error))
    if (!this._fatal) return
    const heard = this._work || this._waiting.size > 0 // run() or wait() throws it
    this._closing.abort(this._fatal)
    if (this.listenerCount('error') > 0) this._tell('error', this._fatal)
    else if (!heard) process.nextTick(() => this.emit('error', this._fatal)) // Node throws it
    throw this._fatal
  }

  async _engine() {
    const closing = this._closing.signal
    for (let failures = 0, rest, woken; !closing.aborted; await pause(rest, woken)) {
      woken = this._woken?.signal ?? closing
      try {
        const healthy = await this._healthy(closing)
        const grant = healthy ? await this._stand() : await this._withdraw()
        failures = 0
        rest = healthy ? this._interval : 500
        if (!grant || closing.aborted) continue
        const lead = await this._keep(this._elect(grant))
        await lead.back
        if (lead.error) throw lead.error
        woken = closing
        rest = isOrderly(lead.reason) ? 1000 : 100 // a lone candidate that resigned must not spin
      } catch (error) {
        if (isFatal(error)) throw error
        if (!closing.aborted) this._log('cannot stand, trying again', error)
        if (this._own && !isOfServer(error)) this._withdraw()
        rest = backOff(failures++, 5000) * (0.75 + Math.random() / 2) // instances must not come in step
      }
    }
  }

  /** Renews every third of the lease until the leadership is over. Returns it (after a failover, that of the new term). */
  async _keep(lead) {
    for (let failures = 0, wait = lead.third; ; ) {
      await pause(wait, lead.over.signal)
      this._arm(lead) // a loop that was blocked may come here before the timer
      if (!(await this._healthy(lead.over.signal))) this._lose('unhealthy')
      if (this._lead !== lead) return lead
      try {
        lead.renewal = this._renew(Math.min(this._callTimeout, lead.deadline - this._clock()), lead.term)
        const grant = await lead.renewal
        this._arm(lead)
        if (this._lead !== lead) return lead
        if (!grant) this._lose('not renewed')
        else if (grant.term !== lead.term) {
          this._lose('failover')
          lead = this._elect(grant)
        } else this._extend(lead, grant)
        wait = lead.third
        failures = 0
      } catch (error) {
        if (this._lead === lead) this._log('cannot renew', error)
        this._arm(lead)
        if (isFatal(error)) {
          lead.error = error
          this._lose('error')
        } else if (error.code === 'LE006') this._lose('not renewed')
        else if (this._own && !isOfServer(error)) this._lose('connection lost')
        wait = backOff(failures++, lead.third)
      }
    }
  }

  /** Sends a call that answers with a grant row: { sent, term, remaining, yielding }, or null. */
  async _ask(call, values, ms) {
    const sent = this._clock()
    const [row] = await this._call(`SELECT term, remaining_ms, yielding FROM leader_election.${call}`, values, ms)
    return row ? { sent, term: Number(row.term), remaining: Number(row.remaining_ms), yielding: row.yielding } : null
  }

  _elect(grant) {
    const lead = (this._lead = { term: grant.term, over: new AbortController() })
    this.changes++
    this._tell('elected', lead.term)
    if (this._work) this._begin(lead)
    this._extend(lead, grant)
    this._change()
    return lead
  }

  _change() {
    for (const told of this._waiting) told()
  }

  _extend(lead, { sent, remaining, yielding }) {
    // A session leads for half of what remains: see Leadership.
    lead.deadline = sent + (this._own ? remaining / 2 : remaining)
    lead.third = Math.max((lead.deadline - sent) / 3, 10)
    this._arm(lead)
    if (yielding) this._askYield(lead)
  }

  /** Ends the leadership at its deadline, now or by a timer. */
  _arm(lead) {
    clearTimeout(lead.timer)
    const left = lead.deadline - this._clock()
    if (this._lead !== lead) return
    if (left <= 0) this._lose('expired')
    else if (left < 2 ** 31) lead.timer = setTimeout(() => this._arm(lead), Math.ceil(left))
  }

  _askYield(lead) {
    if (lead.asked) return
    lead.asked = true
    if (this.listenerCount('yield') > 0) this._tell('yield', lead.term)
    else this._lose('yielded')
  }

  /** Ends the leadership, if there is one. The only place, and so the order: the term, the handlers, the lease. */
  _lose(reason) {
    const lead = this._lead
    if (!lead) return
    this._lead = null
    clearTimeout(lead.timer)
    lead.reason = reason === 'resigned' && lead.asked ? 'yielded' : reason
    lead.over.abort(new NotLeader(`leadership of ${this.election} was lost: ${lead.reason}`))
    lead.back = this._tell('lost', lead.reason, () => lead.job)
      .then(() => this._giveBack(lead))
      .catch((error) => this._log('cannot give the lease back', error))
  }

  /** Calls the handlers of an event, when those of the events before have returned. */
  _tell(event, argument, ...more) {
    return (this._queue = this._queue.then(async () => {
      for (const handler of [...this.rawListeners(event), ...more]) {
        await this._handle(() => handler.call(this, argument)).catch((error) => this._log(`a handler of '${event}' failed`, error))
      }
    }))
  }

  /** Runs a handler. What it calls knows that it is in one, until it has returned. */
  async _handle(handler) {
    const inside = new Set(handling.getStore()).add(this)
    try {
      return await handling.run(inside, handler)
    } finally {
      inside.delete(this)
    }
  }

  /** Starts the work of run(), after the handlers of 'elected'. */
  _begin(lead) {
    const { signal } = lead.over
    const onFailure = (error) => {
      if (signal.aborted) return error === signal.reason || error?.name === 'AbortError' || this._log('the work failed', error)
      this._failure = { error }
      this.close()
    }
    this._queue = this._queue.then(() => {
      if (signal.aborted || lead.job) return
      const job = this._handle(() => this._work(lead.term, signal))
      lead.job = job.catch(noop)
      job.then(() => this._lead === lead && this.resign(), onFailure)
    })
  }

  /** The health check: false if it fails, or if signal is aborted before it answers. */
  async _healthy(signal) {
    try {
      return !this._check || Boolean(await bounded((async () => this._check())(), Infinity, signal))
    } catch (error) {
      if (!signal.aborted) this._log('the health check failed', error)
      return false
    }
  }
}

/**
 * A session candidate: it has a connection of its own, and loses leadership with it.
 *
 * It leads for half of what remains of the lease when a renewal is *sent*: the server may end the
 * session of a peer that went silent after 3 * floor(lease / 3 s) seconds, or 3 s, and elect another.
 *
 * A call that fails without an SQLSTATE may go on at the server: a campaign would be elected there, and
 * nobody would know. The connection is destroyed then, never used again.
 */
class Leadership extends Candidate {
  /**
   * @param {Options & { connect?: object | string | (object | string)[], slice?: number }} options
   *   connect: a config of pg (default: PGHOST and so on), a URL, or an array of these or of hosts, tried
   *   in turn. slice: how long one campaign waits (5000), and so how soon a dead path is noticed.
   */
  constructor(options) {
    const hosts = listHosts(options?.connect) // throws before anything begins
    super(options)
    this._hosts = hosts
    this._slice = options.slice ?? 5000
    this._interval = 10
    this._own = true
  }

  async _stand() {
    let term = this._client ? null : await this._join()
    if (term === null) {
      const values = [this.election, this.candidate, `${this._slice} ms`]
      const ms = this._slice + this._callTimeout
      const rows = await this._call('CALL leader_election.campaign($1, $2, timeout => $3::pg_catalog.interval)', values, ms, this._closing.signal)
      term = rows[0].term
    }
    return term === null ? null : this._renew()
  }

  /** Connects, and stands: so our place in line survives each campaign. The term, if we were elected at once. */
  async _join() {
    let rows
    const client = await connect(this._hosts, this._callTimeout, this._closing.signal, async (query) => {
      // A timeout of the session's would end a waiting campaign, or the session.
      await query(`SELECT pg_catalog.set_config('statement_timeout', '0', false),
        pg_catalog.set_config('idle_session_timeout', '0', false)`)
      const values = [this.election, this.candidate, ...this._standing, !this._check]
      ;({ rows } = await query(`SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,
        metadata => $4::pg_catalog.jsonb, auto_renew => $5::pg_catalog.bool) AS term`, values))
    })
    this._client = client
    client.on('error', () => this._onGone(client)).on('end', () => this._onGone(client))
    return rows[0].term
  }

  _onGone(client) {
    if (this._client !== client) return
    this._client = null
    this._lose('connection lost')
  }

  _renew(ms) { return this._ask('renew($1)', [this.election], ms) }

  async _call(text, values, ms = this._callTimeout, signal = this._cut.signal) {
    if (!this._client) throw new Error('the connection is lost')
    return (await bounded(this._client.query(text, values), ms, signal)).rows
  }

  async _giveBack(lead) {
    await lead.renewal?.catch(noop) // one call at a time
    try {
      if (isOrderly(lead.reason)) return void (await this._call('SELECT leader_election.resign($1)', [this.election]))
      if (/closed|unhealthy/.test(lead.reason)) await this._call('SELECT leader_election.leave($1)', [this.election])
    } catch (error) {
      this._log('cannot give the lease back', error)
    }
    await this._withdraw()
  }

  async _withdraw() {
    this._client?.connection.stream.destroy()
    this._client = null
  }
}

/** A detached candidate, over any connections of the application's pool, also through PgBouncer in transaction mode. */
class DetachedLeadership extends Candidate {
  /**
   * @param {Options & { pool: object, interval?: number, listen?: object | string | (object | string)[] }} options
   *   pool: pg.Pool, or what has connect() for a client with query() and release(true). interval: how
   *   often a follower asks (1000). listen: how to connect for LISTEN, which wakes a follower up.
   */
  constructor(options) {
    if (typeof options?.pool?.connect !== 'function') throw new TypeError('pool: a pool of pg is needed')
    const hosts = options.listen && listHosts(options.listen)
    super(options)
    this._pool = options.pool
    this._interval = options.interval ?? 1000
    this._woken = new AbortController()
    this._closing.signal.addEventListener('abort', () => this._wake())
    if (hosts) this._listen(hosts)
  }

  async _stand() {
    this._stands = true
    const values = [this.election, this.candidate, ...this._standing]
    const grant = await this._ask('acquire($1, $2, rank => $3::pg_catalog.int4, metadata => $4::pg_catalog.jsonb)', values)
    const late = grant && (this._closing.signal.aborted || this._clock() >= grant.sent + grant.remaining)
    if (late) await this._giveBack(grant)
    return late ? null : grant
  }

  _renew(ms, term) { return this._ask('renew($1, $2::pg_catalog.int8)', [this.election, term], ms) }

  async _giveBack(lead) {
    if (/failover|not renewed/.test(lead.reason)) return
    const last = await lead.renewal?.catch(noop) // after a failover its term is greater
    await this._call('SELECT leader_election.release($1, $2::pg_catalog.int8)', [this.election, last?.term ?? lead.term])
  }

  async _withdraw() {
    if (this._stands) await this._call('SELECT leader_election.leave($1, $2)', [this.election, this.candidate])
    this._stands = false
  }

  /** Calls over a connection of the pool; the time that it takes to get one counts. */
  async _call(text, values, ms = this._callTimeout) {
    const late = new AbortController()
    const use = this._pool.connect().then(async (client) => {
      if (late.signal.aborted) return client.release() // nobody waits for an answer: nothing is sent
      client.on?.('error', noop)
      const answer = bounded(client.query(text, values), Infinity, late.signal)
      const error = await answer.then(noop, (error) => error)
      client.off?.('error', noop)
      client.release(Boolean(error && !isOfServer(error))) // the call may go on: not back to the pool
      return (await answer).rows
    })
    return bounded(use, ms, this._cut.signal).finally(() => late.abort(new TimedOut('too late')))
  }

  /** Listens, on a connection of its own, and wakes the follower up when the seat is vacant. */
  async _listen(hosts) {
    const closing = this._closing.signal
    for (let failures = 0; !closing.aborted; await pause(backOff(failures++, 5000), closing)) {
      try {
        const client = await connect(hosts, this._callTimeout, closing, async (query, client) => {
          client.on('notification', ({ payload }) => this._onNotification(payload))
          await query('LISTEN leadership_changed')
        })
        failures = 0
        this._wake() // nobody told us before
        await bounded(new Promise((resolve) => client.on('error', resolve).on('end', resolve)), Infinity, closing).catch(noop)
        client.connection.stream.destroy()
      } catch (error) {
        if (!closing.aborted) this._log('cannot listen, trying again', error)
      }
    }
  }

  _onNotification(payload) {
    try {
      const { election, event } = JSON.parse(payload)
      if (election === this.election && event === 'vacated') this._wake()
    } catch {} // not the extension's: any role can send notifications
  }

  _wake() {
    this._woken.abort()
    if (!this._closing.signal.aborted) this._woken = new AbortController()
  }
}

/** Always leads, alone, without a database and without a term. For a laptop: never chosen automatically. */
class SoleLeadership extends Candidate {
  /** @param {Options & { unfenced?: boolean }} options  unfenced: fenced() passes, and fences nothing. */
  constructor(options) {
    super(options)
    this._unfenced = options.unfenced === true
  }

  _stand() { return { sent: 0, term: null, remaining: Infinity } }

  _fence() {
    if (!this._unfenced) throw new Error('fenced: SoleLeadership has no term to fence with (unfenced: true lets writes pass)')
  }
}

/** For tests: leads as the test says, by a clock that the test moves. Await each call: the handlers have returned then. */
class FakeLeadership extends Candidate {
  /** @param {Partial<Options>} [options] */
  constructor(options) {
    super({ election: 'fake', ...options })
    this._now = this._last = 0
  }

  /** Elects us, by default in the next term, for a lease (in ms) by the test's clock. */
  elect(term = this._last + 1, lease = 15000) {
    this._lose('failover')
    this._elect({ sent: this._now, term: (this._last = term), remaining: lease })
    return this._queue
  }

  /** @param {string} [reason] */
  lose(reason = 'connection lost') {
    this._lose(reason)
    return this._queue
  }

  askYield() {
    if (this._lead) this._askYield(this._lead)
    return this._queue
  }

  /** Moves the clock by so many milliseconds. */
  advance(ms) {
    this._now += ms
    if (!this.leads) this._lose('expired')
    return this._queue
  }

  _clock() { return this._now }
  _arm() {} // no timer: advance() ends a lease
  _fence() {}
  _engine() { return pause(Infinity, this._closing.signal) }
}

module.exports = { Leadership, DetachedLeadership, SoleLeadership, FakeLeadership, NotLeader }
