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

const { randomUUID } = require('node:crypto')
const { EventEmitter, once } = require('node:events')
const os = require('node:os')
const { setTimeout: sleep, setImmediate: nextTurn } = require('node:timers/promises')
const { Client } = require('pg')

// These would be answered the same again: stop, and tell. SASL: a missing password, without a code.
const FATAL = /^(28...|3D000|3F000|42883|42P01|42501|22023|0A000|25001|LE003|SASL.*)$/
// pg's query_timeout would leave a call going on at the server. Node has no TCP_USER_TIMEOUT.
const CONNECTION = { query_timeout: 0, keepAlive: true, keepAliveInitialDelayMillis: 5000 }

/** We do not lead. The code is that of the server's error of the same meaning. */
class NotLeader extends Error { code = 'LE001' }

const noop = () => {}
const promised = async (call) => call()
// Node's timers end at 2 ** 31 ms. One without end does not keep the process alive.
const pause = (ms, signal) => sleep(Math.min(ms, 1e9), null, { signal, ref: ms < 1e9 }).catch(noop)

/**
 * Milliseconds on a clock that goes on while the machine sleeps. The monotonic
 * clock of Node stands still then (on Linux), and a lease that ran out during the
 * sleep would look valid. os.uptime() goes on, but in steps: it tells for how long
 * the machine slept. A paused virtual machine does not know: fence.
 */
let slept = -Infinity // and a constant
function clock() {
  slept = Math.max(slept, os.uptime() * 1000 - performance.now())
  return performance.now() + slept
}

/** The outcome of promise, or an error after ms. */
function within(promise, ms) {
  const answered = new AbortController()
  // If the event loop was blocked, the answer may be there: setImmediate comes after reading it.
  const late = pause(ms, answered.signal).then(() => nextTurn())
    .then(() => Promise.reject(new Error(`no answer in ${Math.round(ms)} ms`)))
  return Promise.race([promise, late]).finally(() => answered.abort())
}

const clientOf = (config) => new Client({ ...config, ...CONNECTION }).on('error', noop)

/**
 * @typedef {object} Options  Times are in milliseconds.
 * @property {string} election
 * @property {string} [candidate]  Default: host name, process ID and a random number.
 * @property {number} [rank]
 * @property {object} [metadata]  What view status shows of the leader.
 * @property {() => boolean | Promise<boolean>} [healthCheck]  Has the working loop made a turn
 *   lately? Unless it says true, we do not stand, and the lease is not renewed.
 * @property {number} [callTimeout=5000]  How long a call may take.
 * @property {AbortSignal} [signal]  Closes.
 * @property {(message: string, error: Error) => void} [log]  Default: console.error.
 * @property {Connect | Connect[]} [connect]  Leadership: where to (default: PGHOST and so on);
 *   each in turn.
 * @property {number} [slice=5000]  Leadership: how long one campaign waits, and so how soon a
 *   dead path is noticed.
 * @property {object} [pool]  DetachedLeadership: a pool of pg.
 * @property {number} [interval=1000]  DetachedLeadership: how often a follower asks.
 * @property {Connect | Connect[]} [listen]  DetachedLeadership: where to LISTEN, which wakes a
 *   follower up.
 * @property {boolean} [unfenced]  SoleLeadership: fenced() passes, and fences nothing.
 * @typedef {object} Connect  A config of pg: one host, or a connectionString.
 */

/**
 * What the four kinds share. Events: 'elected' (term), 'lost' (reason), 'yield' (term), 'error'
 * (error). One handler runs at a time; if it returns a promise, the next event waits for that. So
 * start the work in 'elected', but do not await its end there, nor close().
 *
 * One loop makes all calls, one after the other. `_lead` is what the application knows; it ends
 * by the clock, too. `_held` is what the server may take us to have. What is held, but not led,
 * is given back.
 * @abstract
 */
class Candidate extends EventEmitter {
  /** How many times this client was elected. */
  changes = 0
  _lead = null
  _held = null
  _queue = Promise.resolve() // settled when the handlers of all events so far have returned
  _woken = new AbortController()
  _closing = new AbortController()

  /** @param {Options} options */
  constructor(options) {
    super()
    const { election, candidate, rank, metadata, callTimeout, signal, log } = options
    this.election = election
    this.candidate = candidate ?? `${os.hostname()}-${process.pid}-${Math.random().toFixed(6)}`
    this._options = options
    this._standing = [this.election, this.candidate, rank, metadata && JSON.stringify(metadata)]
    this._callTimeout = callTimeout ?? 5000
    this._log = log ?? ((...words) => console.error(`leader_election ${election}:`, ...words))
    signal?.addEventListener('abort', () => this.close(), { signal: this._closing.signal })
    if (signal?.aborted) this._closing.abort()
    this._over = this._live()
  }

  /** Do we lead now? Never blocks. */
  get leads() { return this._lead !== null && this._clock() < this._lead.deadline }

  /** The term in which we lead now, else null. Never blocks. @returns {number | null} */
  get term() { return this.leads ? this._lead.term : null }

  /**
   * Waits until we lead: the term; null after so many ms, or if we are closed. Rejects with the
   * fatal error if there is one.
   * @param {number} [ms]
   * @returns {Promise<number | null>}
   */
  async wait(ms = Infinity) {
    const by = clock() + ms
    this.on('error', noop) // is heard here
    while (!this.leads && !this._end && clock() < by) await pause(by - clock(), this._woken.signal)
    this.off('error', noop)
    if (this._fatal) throw this._fatal
    return this.term
  }

  /**
   * Runs the work in each term, until we are closed. Its signal is aborted when leadership is
   * lost, and the lease is given back after its end. If it ends while we lead, we resign and
   * stand again. If it fails while we lead, that is a fatal error: we close, and this promise
   * rejects with it. But if it fails with LE001 or LE002, the fence knows that we do not lead:
   * that is a loss, 'not renewed'.
   * @param {(term: number | null, signal: AbortSignal) => any} work
   */
  async run(work) {
    this._work = work
    this._queue = this._queue.then(this._begin.bind(this, this._lead)) // we may lead already
    await this._over
    if (this._fatal) throw this._fatal
  }

  /**
   * Fences the caller's open transaction: it commits only if we lead in this very term then, else
   * it fails with LE002. LE001: we do not lead.
   * @param {{ query(text: string, values: any[]): Promise<any> }} client  Of pg, in a
   *   transaction; not a pool.
   */
  async fenced(client) {
    if (!this.leads) throw new NotLeader(`this candidate does not lead ${this.election}`)
    await this._fence(client, this._lead.term)
  }

  _fence(client, term) {
    if (client.totalCount !== undefined) throw new TypeError('fenced: a client, not the pool')
    if (client.getTransactionStatus?.() === 'I') throw new Error('fenced: no transaction is open')
    return client.query('SELECT leader_election.assert_leader($1, $2)', [this.election, term])
  }

  /**
   * Gives up leadership, and stands again after a second. Does not wait: the lease is given back
   * when the handlers of 'lost' have returned, and the work of run() has ended.
   */
  resign() { this._lose(this._lead?.asked ? 'yielded' : 'resigned') }

  /** What view status is to show of us: from the next renewal on, or when we lead next. */
  setMetadata(metadata) { this._standing[3] = JSON.stringify(metadata) }

  /**
   * Gives up, withdraws, ends connections. Resolves when all this is done and the handlers have
   * returned, or after callTimeout; then the rest goes on by itself. (A handler, or the work of
   * run(), that awaits close() waits for itself, and so for callTimeout.)
   */
  async close() {
    this._shut('closed')
    await within(this._over, this._callTimeout).catch(noop)
  }

  // What the kinds do in their own ways: stand for a while (a grant, or null), renew (the same),
  // leave (after giving back what is held); what to cut short at the end, or after an error.
  _clock() { return clock() }
  _renew(lead) { return lead }
  async _leave(held) {}
  _interrupt() {}

  /** The whole life. An error that nobody hears rejects it, and so ends the process. */
  async _live() {
    await null // until the constructor has returned
    for (let failures = 0, rest; this._held || !this._closing.signal.aborted; ) {
      const woken = this._woken.signal // also by what happens in this turn
      try {
        rest = await this._turn()
        failures = 0
      } catch (error) {
        if (/3F000|42883/.test(error.code)) error.message += ' (CREATE EXTENSION leader_election?)'
        if (FATAL.test(error.code ?? error.message)) this._shut('error', error)
        if (!this._closing.signal.aborted) this._log('trying again:', error.message)
        if (!this._lead || error.code !== '55P03') this._interrupt() // 55P03: busy
        rest = Math.min(100 * 2 ** failures++, this._lead?.third ?? 2000) * (1 - Math.random() / 2)
      }
      await pause(rest, this._lead?.over.signal ?? woken)
    }
    await this._leave().catch(noop)
    await this._queue
    this._end = true
    this._wake() // before the next line, which may throw: wait() is to end all the same
    if (this._fatal) this.emit('error', this._fatal)
  }

  /** Makes one call, if need be. Returns after how many ms the next one is due. */
  async _turn() {
    const { _lead: lead, _held: held } = this
    if (held && !lead) {
      await this._queue // the handlers come first
      this._held = null
      await this._leave(held)
      await pause(1000, this._closing.signal) // a lone candidate that resigned must not spin
      return 0
    }
    const check = this._options.healthCheck ?? (() => true)
    const health = await within(promised(check), this._callTimeout).catch((error) => error)
    if (health !== true) {
      this._lose('unhealthy')
      if (!held) await this._leave().catch(noop)
      throw new Error(`the health check says: ${health}`)
    }
    if (this._closing.signal.aborted) return 0
    const grant = lead ? await this._renew(lead) : await this._stand()
    this._watch() // a loop that was blocked may come here before the timer
    this._held = grant ?? lead
    if (this._lead !== lead || this._closing.signal.aborted) return 0
    if (lead && grant?.term !== lead.term) this._lose(grant ? 'failover' : 'not renewed')
    if (grant && this._clock() < grant.deadline) this._extend(grant)
    return this._lead?.third ?? (grant ? 0 : this._rest)
  }

  /** Sends a call that answers with a grant row: what remains counts from its sending. */
  async _ask(call, values, share = 1) {
    const sent = this._clock()
    const ms = Math.min(this._callTimeout, (this._lead?.deadline ?? Infinity) - sent)
    const { rows: [row] } = await this._call(`SELECT * FROM leader_election.${call}`, values, ms)
    const lasts = Number(row?.remaining_ms) * share // the application may parse int8
    return row && { ...row, term: Number(row.term), deadline: sent + lasts, third: lasts / 3 }
  }

  /** Goes on leading, or begins to. */
  _extend(grant) {
    if (!this._lead) {
      this._lead = Object.assign(grant, { over: new AbortController() })
      this.changes++
      this._tell('elected', grant.term, () => this._begin(grant))
      this._wake()
    }
    Object.assign(this._lead, grant)
    this._watch()
    if (grant.yielding) this._askYield()
  }

  /** Ends the leadership at its deadline, now or by a timer. */
  _watch() {
    clearTimeout(this._timer)
    if (!this.leads) return this._lose('expired')
    this._timer = this._alarm(Math.min(this._lead.deadline - this._clock(), 1000))
  }

  /** Watches again, soon: Node's timers stand still while the machine sleeps. */
  _alarm(ms) { return setTimeout(() => this._watch(), ms).unref() }

  _askYield() {
    if (!this._lead || this._lead.asked) return this._queue
    this._lead.asked = true
    return this.listenerCount('yield') ? this._tell('yield', this.term) : this._lose('yielded')
  }

  /**
   * Ends the leadership, if there is one. The only place, and so the order: the term, the
   * handlers, the lease. What it returns waits for the handlers and the work: if these returned
   * it, they would wait for themselves.
   */
  _lose(reason) {
    const lead = this._lead
    if (!lead) return this._queue
    this._lead = null
    lead.over.abort()
    this._wake()
    const told = this._tell('lost', reason, () => lead.job)
    within(told, this._callTimeout).catch(() => this._log('a handler or the work has not ended'))
    return told
  }

  /** Calls the handlers of an event, when those of the events before have returned. */
  _tell(event, argument, last = noop) {
    const onError = (error) => this._log(`a handler of '${event}' failed:`, error)
    return (this._queue = this._queue.then(async () => {
      for (const handler of [...this.rawListeners(event), last])
        await promised(() => handler.call(this, argument)).catch(onError)
    }))
  }

  /** Starts the work of run() in a term, once. */
  _begin(lead) {
    this._watch() // the handlers of 'elected' may have taken until after the deadline
    if (!this._work || !lead || lead.job || lead.over.signal.aborted) return
    const { signal } = lead.over
    const onEnd = () => this._lead === lead && this.resign()
    lead.job = promised(() => this._work(lead.term, signal)).then(onEnd, (error) => {
      this._watch() // a loop that was blocked may come here before the timer
      const refused = /^LE00[12]$/.test(error?.code) // by the fence: the server knows better
      if (signal.aborted && (refused || error?.name === 'AbortError')) return
      if (!signal.aborted && !refused) return this._shut('error', error)
      this._log('the work failed:', error)
      if (!signal.aborted) this._lose('not renewed')
    })
  }

  /** Stops standing, for good. */
  _shut(reason, error) {
    if (!this._closing.signal.aborted) this._fatal = error
    this._closing.abort()
    this._lose(reason)
    this._interrupt()
    this._wake()
  }

  /** Ends the pauses of the loop, and of wait(). */
  _wake() {
    this._woken.abort()
    this._woken = new AbortController()
  }
}

/**
 * A session candidate: it has a connection of its own, and loses leadership with it.
 *
 * It leads for half of what remains of the lease when a renewal is *sent*: the server may end the
 * session of a peer that went silent after 3 * floor(lease / 3 s) seconds, or 3 s, and elect
 * another.
 *
 * A call that fails may go on at the server: a campaign would be elected there, and nobody would
 * know. The connection is destroyed then, and after each leadership, and never used again.
 */
class Leadership extends Candidate {
  _hosts = [this._options.connect ?? {}].flat()
  _slice = this._options.slice ?? 5000
  _rest = 10

  async _stand() {
    if (!this._client) await this._connect()
    const sql = 'CALL leader_election.campaign($1, $2, timeout => $3::pg_catalog.interval)'
    const values = [this.election, this.candidate, `${this._slice} ms`]
    await this._call(sql, values, this._slice + this._callTimeout)
    return this._renew() // no row if we were not elected
  }

  /**
   * Connects to the next host, and stands: so our place in line survives each campaign. A standby
   * refuses it.
   */
  async _connect() {
    this._hosts.push(this._hosts.shift())
    const client = (this._client = clientOf(this._hosts.at(-1)))
    client.on('end', () => this._client === client && this._lose('connection lost'))
    await within(client.connect(), this._callTimeout)
    // auto_renew: where the network is cut without a word, a session lives on at the server, and
    // may be elected. The worker would renew that lease, which nobody knows of, while it lives.
    // A timeout of the session's would end a waiting campaign, or the session.
    const sql = `SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,
        metadata => $4::pg_catalog.jsonb, auto_renew => false),
      pg_catalog.set_config('statement_timeout', '0', false),
      pg_catalog.set_config('idle_session_timeout', '0', false)`
    await this._call(sql, this._standing)
  }

  _renew() {
    const call = 'renew($1, metadata => $2::pg_catalog.jsonb)'
    return this._ask(call, [this.election, this._standing[3]], 0.5)
  }

  _call(sql, values, ms = this._callTimeout) { return within(this._client.query(sql, values), ms) }

  async _leave(held) {
    if (held) await this._call('SELECT leader_election.leave($1)', [this.election])
    this._client?.connection.stream.destroy()
    this._client = null
  }

  /** The server must not see the connection end before the handlers of 'lost' have returned. */
  _interrupt() {
    if (!this._held) this._leave()
    this._lose('connection lost')
  }
}

/**
 * A detached candidate, over any connections of the application's pool, also through PgBouncer in
 * transaction mode.
 */
class DetachedLeadership extends Candidate {
  _rest = this._options.interval ?? 1000
  _listening = this._options.listen && this._listen([this._options.listen].flat())

  _request = randomUUID() // until it is granted: so no grant is lost with its answer

  async _stand() {
    const call = `acquire($1, $2, rank => $3::pg_catalog.int4, metadata => $4::pg_catalog.jsonb,
      request => $5::pg_catalog.uuid)`
    const grant = await this._ask(call, [...this._standing, this._request])
    if (grant) this._request = randomUUID()
    return grant
  }

  _renew({ term }) {
    const call = 'renew($1, $2, metadata => $3::pg_catalog.jsonb)'
    return this._ask(call, [this.election, term, this._standing[3]])
  }

  async _leave(held) {
    const sql = held ? 'release($1, $2)' : 'leave($1, $2)'
    await this._call(`SELECT leader_election.${sql}`, [this.election, held?.term ?? this.candidate])
  }

  /** Calls over a connection of the pool; the time that it takes to get one counts. */
  async _call(sql, values, ms = this._callTimeout) {
    const end = clock() + ms
    const connecting = this._options.pool.connect()
    let client, broken = false
    try {
      client = await within(connecting, ms)
      return await within(client.on('error', noop).query(sql, values), end - clock())
    } catch (error) {
      // Without an answer of the server (which has a severity) the call may go on.
      if (client) broken = !error.severity || /^(08|57P)/.test(error.code)
      throw error
    } finally {
      connecting.then((client) => client.off('error', noop).release(broken), noop)
    }
  }

  /** Listens, on a connection of its own, and wakes the follower up when something has changed. */
  async _listen(hosts) {
    const { signal } = this._closing
    for (let tries = 0, client; !signal.aborted; await pause(5000, signal)) {
      const name = JSON.stringify(this.election)
      try {
        client = clientOf(hosts[tries++ % hosts.length]) // which refuses a bad config
        client.on('notification', ({ payload }) => payload.includes(name) && this._wake())
        await within(client.connect(), this._callTimeout)
        await within(client.query('LISTEN leadership_changed'), this._callTimeout)
        this._wake() // nobody told us before
        await once(client, 'end', { signal })
      } catch (error) {
        if (!signal.aborted) this._log('cannot listen, trying again:', error)
      }
      client?.connection.stream.destroy()
    }
  }
}

/**
 * Always leads, alone, without a database and without a term. For a laptop: never chosen
 * automatically.
 */
class SoleLeadership extends Candidate {
  _stand() { return { term: null, deadline: Infinity, third: Infinity } }

  _fence() { if (!this._options.unfenced) throw new Error('fenced: SoleLeadership has no term') }
}

/**
 * For tests: leads as the test says, by a clock that the test moves. Await each call: the
 * handlers have returned then.
 */
class FakeLeadership extends Candidate {
  _now = 0
  _last = 0

  /** @param {Partial<Options>} [options] */
  constructor(options) { super({ election: 'fake', ...options }) }

  /** Elects us, by default in the next term, for a lease (in ms) by the test's clock. */
  elect(term = this._last + 1, lease = 15000) {
    this._lose('failover')
    this._last = term
    this._extend({ term, deadline: this._now + lease })
    return this._queue
  }

  /** @param {string} [reason] */
  lose(reason = 'connection lost') { return this._lose(reason) }
  askYield() { return this._askYield() }

  /** Moves the clock by so many milliseconds. */
  advance(ms) {
    this._now += ms
    return this._watch()
  }

  _clock() { return this._now }
  _alarm() {}
  async _fence() {}
  _turn() { return Infinity }
}

module.exports = { Leadership, DetachedLeadership, SoleLeadership, FakeLeadership, NotLeader }
