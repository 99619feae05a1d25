/**
 * A client of the PostgreSQL extension leader_election, for Node.js 18 and later
 * and npm's pg 8. One file: copy it, or install it as a package.
 *
 * Invariant: `term` is never given out after the deadline, which is counted from
 * the *sending* of the last answered renewal; every 'elected' has exactly one
 * 'lost'; 'lost' is reported, and its handlers have returned, before the lease is
 * given back.
 *
 * All handlers run in the event loop of the process. A loop that is blocked
 * renews nothing. When it wakes up, `term` is null by the clock before any
 * handler runs, but what the blocking code itself did meanwhile nobody has
 * checked: fence the writes (`fenced()`, or send the term along).
 */
'use strict'

const { AsyncLocalStorage } = require('node:async_hooks')
const { randomBytes } = require('node:crypto')
const { EventEmitter } = require('node:events')
const os = require('node:os')

// The same call would be answered the same: stop, and tell.
const FATAL = /^(28...|3D000|3F000|42883|42P01|42501|22023|0A000|25001|LE003)$/
// Node's own codes (EPIPE) begin with E, which no SQLSTATE does.
const SQLSTATE = /^(?!E)[0-9A-Z]{5}$/

// A timeout of the session would end a waiting campaign, or the idle session.
const SETUP = `SELECT pg_catalog.set_config('statement_timeout', '0', false),
  pg_catalog.set_config('idle_session_timeout', '0', false)`
const JOIN = `SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,
  metadata => $4::pg_catalog.jsonb, auto_renew => $5::pg_catalog.bool) AS term`
const CAMPAIGN = 'CALL leader_election.campaign($1, $2, timeout => $3::pg_catalog.interval)'
const ACQUIRE = `SELECT term, remaining_ms, yielding FROM leader_election.acquire($1, $2,
  rank => $3::pg_catalog.int4, metadata => $4::pg_catalog.jsonb)`
const RENEW = 'SELECT term, remaining_ms, yielding FROM leader_election.renew($1)'
const RENEW_TERM = 'SELECT term, remaining_ms, yielding FROM leader_election.renew($1, $2::pg_catalog.int8)'
const RESIGN = 'SELECT leader_election.resign($1)'
const LEAVE = 'SELECT leader_election.leave($1)'
const RELEASE = 'SELECT leader_election.release($1, $2::pg_catalog.int8)'
const LEAVE_DETACHED = 'SELECT leader_election.leave($1, $2)'
const ASSERT = 'SELECT leader_election.assert_leader($1, $2::pg_catalog.int8)'

/** We do not lead (now). */
class NotLeader extends Error {
  constructor(message) {
    super(message)
    this.name = 'NotLeader'
  }
}

class TimedOut extends Error {}

const noop = () => {}

/** Milliseconds that the system has been up, sleep included, less those of the monotonic clock. */
const sleptBefore = () => os.uptime() * 1000 - performance.now()
let slept = 0
let base = sleptBefore()

/**
 * Milliseconds on a clock that goes on while the machine sleeps. Node's monotonic
 * clock stands still then (on Linux), so a lease that ran out during the sleep
 * would look valid. os.uptime() goes on, but in steps (10 ms): it tells only how
 * long the machine slept. A paused virtual machine does not know: fence.
 */
function clock() {
  const gap = sleptBefore() - base
  if (gap > 50) {
    slept += gap
    base += gap
  }
  return performance.now() + slept
}

/** The outcome of promise, unless ms pass or one of the signals is aborted before. */
async function bounded(promise, ms, ...signals) {
  let timer, stop
  const stopped = new Promise((resolve, reject) => {
    stop = () => reject(signals.find((signal) => signal.aborted).reason)
    if (ms < 2 ** 31) timer = setTimeout(() => reject(new TimedOut(`no answer within ${Math.round(ms)} ms`)), ms)
    for (const signal of signals) signal.addEventListener('abort', stop)
    if (signals.some((signal) => signal.aborted)) stop()
  })
  try {
    return await Promise.race([promise, stopped])
  } finally {
    clearTimeout(timer)
    for (const signal of signals) signal.removeEventListener('abort', stop)
  }
}

const pause = (ms, ...signals) => bounded(new Promise(noop), ms, ...signals).catch(noop)

const isFatal = (error) => FATAL.test(error.code) || /^SASL/.test(error.message)

/** 0.1 s, doubled with each failure to 5 s, with jitter: instances must not come in step. */
const backOff = (failures) => Math.min(100 * 2 ** failures, 5000) * (0.75 + Math.random() / 2)

function explain(error) {
  const missing = /^(3F000|42883)$/.test(error.code)
  const hint = missing ? 'this database lacks the extension (CREATE EXTENSION leader_election): ' : ''
  return Object.assign(new Error(`leader_election: ${hint}${error.message}`, { cause: error }), { code: error.code })
}

/** A config of pg, a URL, a host, or an array of these; `host` may be an array, and `port`, too. */
function listHosts(connect) {
  return [connect ?? {}].flat().flatMap((one) => {
    if (typeof one === 'string') return one.includes('://') ? { connectionString: one } : { host: one }
    if (typeof one.connect === 'function') throw new TypeError('a session candidate needs a connection of its own: give the config of pg, not a client or pool')
    if (!Array.isArray(one.host)) return one
    return one.host.map((host, i) => ({ ...one, host, port: Array.isArray(one.port) ? one.port[i] ?? one.port[0] : one.port }))
  })
}

/**
 * A connection of our own. Each call has a timer of ours. A call that fails
 * without an SQLSTATE may go on at the server (a campaign would be elected, and
 * nobody would know): whoever sees that has to destroy the connection.
 */
class Session {
  constructor(config) {
    const { Client } = require('pg')
    this.client = new Client({ ...config, keepAlive: true, keepAliveInitialDelayMillis: 5000 })
    this.client.connectionParameters.query_timeout = 0 // it leaves the call going on at the server
    this.ended = new AbortController()
    this.gone = this.ended.signal
    const end = (error) => this.ended.abort(error ?? new Error('the connection was closed'))
    this.client.on('error', end).on('end', end)
  }

  async call(text, values, ms, ...signals) {
    return (await bounded(this.client.query(text, values), ms, this.gone, ...signals)).rows
  }

  destroy() {
    this.client.connection.stream.destroy()
  }
}

/** Connects to the first host for which `first(session)` succeeds; a standby refuses it (25006). */
async function openSession(hosts, ms, signal, first) {
  let failure
  for (const host of hosts) {
    const session = new Session(host)
    try {
      await bounded(session.client.connect(), ms, signal)
      return [session, await first(session)]
    } catch (error) {
      session.destroy()
      failure = error
      if (signal.aborted || isFatal(error)) break
    }
  }
  throw failure
}

/** Tells close() and resign() that they were called by a handler, for whose end they must not wait. */
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
 * @property {(message: string, error?: Error) => void} [log]  Default: console.error.
 */

/**
 * What the four kinds share: events, the local deadline, and the order in which
 * a leadership ends: term is null, 'lost' handlers finish, the lease is given back.
 *
 * Events: 'elected' (term), 'lost' (reason), 'yield' (term), 'error' (error). Handlers may return
 * promises: the next event waits for them. So start the work in 'elected'; do not await its end there.
 * @abstract
 */
class Candidate extends EventEmitter {
  /** @param {Options} options */
  constructor(options) {
    super()
    if (typeof options?.election !== 'string') throw new TypeError('election: a string is needed')
    this.election = options.election
    this.candidate = options.candidate ?? `${os.hostname()}-${process.pid}-${randomBytes(4).toString('hex')}`
    /** How many times this client was elected. */
    this.changes = 0
    this._standing = [options.rank ?? null, options.metadata === undefined ? null : JSON.stringify(options.metadata)]
    this._check = options.healthCheck
    this._callTimeout = options.callTimeout ?? 5000
    this._log = options.log ?? ((message, error) => console.error(`leader_election ${this.election}: ${message}`, error?.message ?? ''))
    this._share = 1 // of remaining_ms, that we lead
    this._lead = null // the leadership that was told last and not lost
    this._told = Promise.resolve() // settled when all events so far were handled
    this._closing = new AbortController()
    this._cut = new AbortController() // calls still under way callTimeout after close() are given up
    this._watchers = new Set() // of changes, for wait() and run()
    this._signal = options.signal
    this._onAbort = () => this.close()
  }

  /** Are we the leader now? Never blocks. */
  get leads() {
    return this._lead !== null && this._clock() < this._lead.deadline
  }

  /** The term in which we lead now, else null. Never blocks. @returns {number | null} */
  get term() {
    return this.leads ? this._lead.term : null
  }

  /**
   * Waits until we lead: the term; null after the timeout (in ms), or when we are closed. Rejects with
   * the fatal error if there is one, and with the reason of an aborted signal.
   * @param {number | { timeout?: number, signal?: AbortSignal }} [limit]
   * @returns {Promise<number | null>}
   */
  async wait(limit = {}) {
    const { timeout = Infinity, signal } = typeof limit === 'number' ? { timeout: limit } : limit
    const led = this._watch(() => this.leads)
    try {
      await bounded(led.promise, timeout, ...(signal ? [signal] : []))
    } catch (error) {
      if (!(error instanceof TimedOut)) throw error
    } finally {
      led.stop()
    }
    return this.term
  }

  /**
   * Runs the work in each term, until we are closed. Its signal is aborted when leadership is lost;
   * the lease is given back after its end. If it returns before, we resign and stand again. If it
   * fails before, we close, and its error is this promise's.
   * @param {(term: number | null, signal: AbortSignal) => any} work
   */
  async run(work) {
    let job, lead, failure
    const begin = (term) => {
      if (!this.leads || this._lead === lead || this._lead.term !== term) return
      const mine = (lead = this._lead)
      const { signal } = mine.over
      job = this._handle(() => work(term, signal))
      job.then(
        () => this._lead === mine && this.resign(),
        (error) => {
          if (!signal.aborted) {
            failure = error
            this.close()
          } else if (error !== signal.reason && error?.name !== 'AbortError') this._log('the work failed after its term', error)
        }
      )
    }
    const end = () => job?.catch(noop)
    const closed = this._watch(() => false)
    this.on('elected', begin).on('lost', end)
    try {
      begin(this.term)
      await closed.promise
      await this._finished
    } finally {
      closed.stop()
      this.off('elected', begin).off('lost', end)
    }
    if (failure) throw failure
  }

  /**
   * Fences the caller's open transaction: it commits only if we lead in this very term then, else it
   * fails with LE002. LE001: we do not lead.
   * @param {{ query(text: string, values: any[]): Promise<any> }} client  Of pg, in a transaction; not a pool.
   */
  async fenced(client) {
    const term = this._assertLeads()
    if (typeof client.totalCount === 'number') throw new TypeError('fenced: give the client that has the open transaction, not the pool')
    if (client.getTransactionStatus?.() === 'I') throw new Error('fenced: this client has no open transaction; await its BEGIN first')
    await client.query(ASSERT, [this.election, term])
  }

  /**
   * Gives up leadership, and goes on standing after a second. True if we led. Resolves when the lease
   * is given back (in a handler of ours, or in the work of run(): at once).
   */
  async resign() {
    const lead = this._lead
    if (!this.leads) return false
    this._lose('resigned')
    if (!handling.getStore()?.has(this)) await lead.returned
    return true
  }

  /** Gives up, withdraws, ends connections. Resolves when that is done (in a handler of ours: at once). */
  async close() {
    if (!this._closing.signal.aborted) {
      this._closing.abort(new Error('closed'))
      this._lose('closed')
      this._changed()
      this._told.then(() => {
        const timer = setTimeout(() => this._cut.abort(new TimedOut('closed')), this._callTimeout)
        this._finished.then(() => clearTimeout(timer))
      })
    }
    if (!handling.getStore()?.has(this)) await this._finished
  }

  _clock() {
    return clock()
  }

  /** To be called at the end of each constructor. */
  _start() {
    const end = async () => {
      await this._told
      this._signal?.removeEventListener('abort', this._onAbort)
    }
    this._finished = this._engine().catch((error) => this._fail(explain(error))).then(end)
    this._signal?.addEventListener('abort', this._onAbort)
    if (this._signal?.aborted) this.close()
  }

  /** A promise for when test() holds or we are closed; it fails with the fatal error. */
  _watch(test) {
    let look
    const promise = new Promise((resolve, reject) => {
      look = () => (this._fatal ? reject(this._fatal) : (this._closing.signal.aborted || test()) && resolve())
    })
    promise.catch(noop)
    this._watchers.add(look)
    look()
    return { promise, stop: () => this._watchers.delete(look) }
  }

  _changed() {
    for (const look of this._watchers) look()
  }

  async _fail(error) {
    this._lose('error')
    await this._told
    const heard = this._watchers.size > 0 // wait() or run() throws it
    this._fatal = error
    this._closing.abort(error)
    this._changed()
    if (this.listenerCount('error') > 0) this._tell('error', error)
    else if (!heard) process.nextTick(() => this.emit('error', error)) // not silent: Node throws it
  }

  /** Runs a handler. What it calls knows that it is in one, for as long as it has not ended. */
  async _handle(handler) {
    const open = new Set(handling.getStore()).add(this)
    try {
      return await handling.run(open, handler)
    } finally {
      open.delete(this)
    }
  }

  /** Calls the handlers of an event, after those of the events before have ended. */
  _tell(event, argument) {
    return (this._told = this._told.then(async () => {
      for (const handler of this.rawListeners(event)) {
        await this._handle(() => handler.call(this, argument)).catch((error) => this._log(`a handler of '${event}' failed`, error))
      }
    }))
  }

  /** Begins a leadership. A grant is { sent, term, remaining, yielding }. */
  _elect(grant) {
    const lead = { term: grant.term, over: new AbortController() }
    lead.returned = new Promise((resolve) => (lead.settle = resolve))
    this._lead = lead
    this.changes++
    this._tell('elected', lead.term)
    this._extend(lead, grant)
    this._changed()
    return lead
  }

  _extend(lead, { sent, remaining, yielding }) {
    lead.deadline = sent + remaining * this._share
    lead.third = Math.max((lead.deadline - sent) / 3, 10)
    this._arm(lead)
    if (yielding) this._askYield(lead)
  }

  /** Has the end of a lease told without anybody's asking. */
  _arm(lead) {
    clearTimeout(lead.timer)
    const left = lead.deadline - this._clock()
    if (left > 0) lead.timer = left < 2 ** 31 && setTimeout(() => this._arm(lead), Math.ceil(left))
    else if (this._lead === lead) this._lose('expired')
  }

  _askYield(lead) {
    if (lead.asked) return
    lead.asked = true
    if (this.listenerCount('yield') > 0) this._tell('yield', lead.term)
    else this._lose('yielded')
  }

  /** Ends the leadership, if there is one: the only place. Whoever gives the lease back waits for lead.told. */
  _lose(reason) {
    const lead = this._lead
    if (!lead) return
    this._lead = null
    clearTimeout(lead.timer)
    lead.reason = reason === 'resigned' && lead.asked ? 'yielded' : reason
    lead.told = this._tell('lost', lead.reason)
    lead.over.abort(new NotLeader(`leadership of ${this.election} was lost: ${lead.reason}`))
  }

  _assertLeads() {
    const { term } = this
    if (!this.leads) throw new NotLeader(`this candidate does not lead ${this.election}`)
    return term
  }

  /** The health check of the caller's: false if it fails, or signal ends the wait for it. */
  async _healthy(signal) {
    if (!this._check) return true
    try {
      return Boolean(await bounded((async () => this._check())(), Infinity, signal))
    } catch (error) {
      if (!signal.aborted) this._log('the health check failed', error)
      return false
    }
  }

  /** Sends a call that answers with a grant row. No row: null. */
  async _ask(call) {
    const sent = this._clock()
    const [row] = await call()
    return row ? { sent, term: Number(row.term), remaining: Number(row.remaining_ms), yielding: row.yielding } : null
  }

  /**
   * Renews every third of the lease, until the leadership is over. Returns the grant of a new term
   * (after a failover), or null. `renew(ms)` may take so long.
   */
  async _keep(lead, renew) {
    const over = lead.over.signal
    let wait = lead.third
    for (let failures = 0; ; ) {
      await pause(wait, over)
      if (!(await this._healthy(over))) this._lose('unhealthy')
      if (over.aborted) return null
      try {
        const ms = Math.min(this._callTimeout, lead.deadline - this._clock())
        const grant = await this._ask(() => renew(ms))
        if (this._lead === lead) this._arm(lead) // a loop that was blocked may see the answer before the timer
        lead.last = grant?.term ?? lead.last
        if (over.aborted) return null
        if (!grant) this._lose('not renewed')
        else if (grant.term !== lead.term) this._lose('failover')
        if (over.aborted) return grant
        this._extend(lead, grant)
        wait = lead.third
        failures = 0
      } catch (error) {
        if (over.aborted) return null
        this._log('renewing failed', error)
        if (isFatal(error)) {
          this._lose('error')
          throw error
        }
        this._arm(lead)
        if (error.code === 'LE006') this._lose('not renewed')
        else if (this._ownConnection && !SQLSTATE.test(error.code)) this._lose('connection lost')
        wait = Math.min(100 * 2 ** failures++, lead.third)
      }
    }
  }
}

/**
 * A session candidate: it has a connection of its own, and loses leadership with it.
 *
 * It leads for half of what remains of the lease when a renewal is *sent*: the server may end the
 * session of a peer that went silent after 3 * floor(lease / 3 s) seconds, or 3 s, and elect another.
 */
class Leadership extends Candidate {
  /**
   * @param {Options & { connect?: object | string | (object | string)[], slice?: number }} options
   *   connect: a config of pg (default: PGHOST and so on), a URL, or an array of these or of hosts, tried
   *   in turn. slice: how long one campaign waits (5000), and so how soon a dead path is noticed.
   */
  constructor(options) {
    super(options)
    this._hosts = listHosts(options.connect)
    this._slice = options.slice ?? 5000
    this._share = 0.5
    this._ownConnection = true
    this._start()
  }

  async _engine() {
    const closing = this._closing.signal
    for (let failures = 0; !closing.aborted; failures++) {
      try {
        if (await this._healthy(closing)) await this._stand(() => (failures = -1))
      } catch (error) {
        if (closing.aborted) return
        if (isFatal(error)) throw error
        this._log('standing failed, will be tried again', error)
      }
      await pause(backOff(Math.max(failures, 0)), closing)
    }
  }

  /** From connecting to the end of that connection. What it calls throws when it is not to be used any more. */
  async _stand(onJoined) {
    const closing = this._closing.signal
    const [session, joined] = await openSession(this._hosts, this._callTimeout, closing, async (session) => {
      await session.call(SETUP, [], this._callTimeout, closing)
      return session.call(JOIN, [this.election, this.candidate, ...this._standing, !this._check], this._callTimeout, closing)
    })
    try {
      onJoined()
      for (let [{ term }] = joined; ; ) {
        if (term !== null) {
          if (!(await this._reign(session))) return
          await pause(1000, closing, session.gone) // a lone candidate that resigned must not spin
        }
        if (!(await this._healthy(closing))) return
        const values = [this.election, this.candidate, `${this._slice} ms`]
        ;[{ term }] = await session.call(CAMPAIGN, values, this._slice + this._callTimeout, closing)
      }
    } finally {
      session.destroy()
    }
  }

  /** From the election to the end of that leadership. True if the connection may be used again. */
  async _reign(session) {
    const renew = (ms) => session.call(RENEW, [this.election], ms, this._cut.signal)
    let grant = null
    try {
      grant = await this._ask(() => renew(this._callTimeout))
    } catch (error) {
      if (isFatal(error) || !SQLSTATE.test(error.code)) throw error
      this._log('renewing failed', error)
    }
    if (this._closing.signal.aborted) return false
    if (!grant) return true
    const lead = this._elect(grant)
    const onGone = () => this._lead === lead && this._lose('connection lost')
    session.gone.addEventListener('abort', onGone)
    if (session.gone.aborted) onGone()
    try {
      await this._keep(lead, renew)
      await lead.told
      const stays = lead.reason === 'resigned' || lead.reason === 'yielded'
      if (stays) await session.call(RESIGN, [this.election], this._callTimeout, this._cut.signal)
      if (lead.reason === 'closed' || lead.reason === 'unhealthy') await session.call(LEAVE, [this.election], this._callTimeout, this._cut.signal)
      return stays
    } finally {
      await lead.told
      if (!['resigned', 'yielded'].includes(lead.reason)) session.destroy()
      lead.settle()
    }
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
    super(options)
    if (typeof options.pool?.connect !== 'function') throw new TypeError('pool: a pool of pg is needed')
    this._pool = options.pool
    this._interval = options.interval ?? 1000
    this._listen = options.listen && listHosts(options.listen)
    this._vacated = new AbortController()
    this._start()
  }

  async _engine() {
    const closing = this._closing.signal
    if (this._listen) this._hear()
    let stands = false
    for (let failures = 0; !closing.aborted; ) {
      let wait = this._interval
      let woken = this._vacated.signal
      try {
        if (await this._healthy(closing)) {
          stands = true
          const values = [this.election, this.candidate, ...this._standing]
          const grant = await this._ask(() => this._call(ACQUIRE, values, this._callTimeout))
          failures = 0
          if (grant) {
            await this._reign(grant)
            woken = closing // a lone candidate that released must not spin
            wait = 1000
          }
        } else if (stands && !closing.aborted) {
          await this._call(LEAVE_DETACHED, [this.election, this.candidate], this._callTimeout)
          stands = false
        }
      } catch (error) {
        if (isFatal(error)) throw error
        this._log('standing failed, will be tried again', error)
        wait = backOff(failures++)
      }
      await pause(wait, woken, closing)
    }
    if (stands) await this._call(LEAVE_DETACHED, [this.election, this.candidate], this._callTimeout).catch((error) => this._log('leaving failed', error))
  }

  /** From a grant to the end of that leadership, and of those that follow it by a failover. */
  async _reign(grant) {
    while (grant) {
      if (this._closing.signal.aborted || this._clock() >= grant.sent + grant.remaining) return this._release(grant.term)
      const lead = this._elect(grant)
      lead.last = lead.term
      grant = null
      try {
        grant = await this._keep(lead, (ms) => this._call(RENEW_TERM, [this.election, lead.term], ms))
      } finally {
        await lead.told
        if (!['not renewed', 'failover'].includes(lead.reason)) await this._release(lead.last)
        lead.settle()
      }
    }
  }

  async _release(term) {
    await this._call(RELEASE, [this.election, term], this._callTimeout).catch((error) => this._log('releasing failed', error))
  }

  /** Calls over a connection of the pool; the time that it takes to get one counts. */
  async _call(text, values, ms) {
    const late = new AbortController()
    const use = async () => {
      const client = await this._pool.connect()
      let broken = true // without an SQLSTATE the call may go on: not back to the pool
      client.on?.('error', noop)
      try {
        const { rows } = await bounded(client.query(text, values), Infinity, late.signal)
        broken = false
        return rows
      } catch (error) {
        broken = !SQLSTATE.test(error.code)
        throw error
      } finally {
        client.off?.('error', noop)
        client.release(broken)
      }
    }
    try {
      return await bounded(use(), ms, this._cut.signal)
    } finally {
      late.abort(new TimedOut('too late'))
    }
  }

  /** Listens, on a connection of its own, and wakes up the follower when the seat is vacant. */
  async _hear() {
    const closing = this._closing.signal
    for (let failures = 0; !closing.aborted; failures++) {
      try {
        const [session] = await openSession(this._listen, this._callTimeout, closing, async (session) => {
          session.client.on('notification', ({ payload }) => this._notified(payload))
          await session.call('LISTEN leadership_changed', [], this._callTimeout, closing)
        })
        failures = 0
        this._wake() // what was told before is lost
        await bounded(new Promise(noop), Infinity, session.gone, closing).finally(() => session.destroy())
      } catch (error) {
        if (!closing.aborted) this._log('listening failed, will be tried again', error)
      }
      await pause(backOff(failures), closing)
    }
  }

  _notified(payload) {
    try {
      const { election, event } = JSON.parse(payload)
      if (election === this.election && event === 'vacated') this._wake()
    } catch {} // not the extension's: any role can send notifications
  }

  _wake() {
    const before = this._vacated
    this._vacated = new AbortController()
    before.abort()
  }
}

/** Always leads, alone, without a database, and has no term. For a laptop; never chosen automatically. */
class SoleLeadership extends Candidate {
  /** @param {Options & { unfenced?: boolean }} options  unfenced: fenced() passes, and fences nothing. */
  constructor(options) {
    super(options)
    this._unfenced = options.unfenced === true
    this._start()
  }

  async _engine() {
    while (!this._closing.signal.aborted) {
      const lead = this._elect({ sent: 0, term: null, remaining: Infinity })
      await pause(Infinity, lead.over.signal)
      await lead.told
      lead.settle()
      await pause(1000, this._closing.signal)
    }
  }

  async fenced() {
    this._assertLeads()
    if (!this._unfenced) throw new Error('SoleLeadership has no term to fence with; { unfenced: true } lets writes pass')
  }
}

/** For tests: does what the test says, by a clock that the test moves. Await each call: handlers have ended then. */
class FakeLeadership extends Candidate {
  /** @param {Partial<Options>} [options] */
  constructor(options = {}) {
    super({ election: 'fake', ...options })
    this._now = 0
    this._last = 0
    this._start()
  }

  /** Elects this candidate, by default in the next term, for a lease (in ms) by the test's clock. */
  async elect(term = this._last + 1, lease = 15000) {
    this._lose('failover')
    this._last = term
    this._elect({ sent: this._now, term, remaining: lease })
    await this._told
  }

  /** @param {string} [reason] */
  async lose(reason = 'connection lost') {
    this._lose(reason)
    await this._told
  }

  async askYield() {
    if (this._lead) this._askYield(this._lead)
    await this._told
  }

  /** Moves the clock by so many milliseconds. */
  async advance(ms) {
    this._now += ms
    if (this._lead) this._arm(this._lead)
    await this._told
  }

  async fenced() {
    this._assertLeads()
  }

  _clock() {
    return this._now
  }

  _arm(lead) {
    if (this._now >= lead.deadline) this._lose('expired')
  }

  _lose(reason) {
    const lead = this._lead
    super._lose(reason)
    lead?.told.then(lead.settle)
  }

  _engine() {
    return pause(Infinity, this._closing.signal)
  }
}

if (Symbol.asyncDispose) {
  Candidate.prototype[Symbol.asyncDispose] = Candidate.prototype.close
}

module.exports = { Leadership, DetachedLeadership, SoleLeadership, FakeLeadership, NotLeader }
