/**
 * A client of the PostgreSQL extension leader_election, for Node.js 18 and later
 * and npm's pg 8. Copy it and leader_election_base.js, or install them as a package.
 *
 *     const leadership = new Leadership({ election: 'scheduler' })
 *     leadership.run(async (term, signal) => {
 *       while (!signal.aborted) await oneShortPieceOfWork(term)
 *     })
 *
 * Invariant: `term` is never given out after the deadline, which is counted from the
 * *sending* of the last answered renewal; every 'elected' has exactly one 'lost'; 'lost' is
 * reported, and its handlers have returned, before the lease is given back.
 *
 * Everything runs in the event loop of the process. A loop that is blocked renews nothing.
 * When it goes on, `term` is null by the clock before any handler runs, but nobody has
 * checked what the blocking code itself did meanwhile: fence the writes (`fenced()`, or
 * send the term along).
 *
 * The states, as docs/clients.md draws them, and the methods of Candidate between them:
 *
 *     standing --_extend(grant)--> leads --_lose(reason)--> losing --_giveBack()--> standing
 *     leads --_extend(grant)--> leads
 *     leads --_lose('failover')--> losing --_extend(grant)--> leads, in a greater term
 *     any --_end('closed'), _fail(error)--> (if we lead: losing, then) closed
 *
 * `_lead` and `_held`, below, say which it is: standing has neither, leads has both, losing has
 * `_held` alone. The property `state` has other words: losing is 'standing' there, and after
 * close() it is 'closed' at once. After a failover we lead in the new term when the handlers, and
 * the work, of the old one have ended; if that takes until the deadline, or fails, we do not.
 *
 * Words in brackets, [like these], name a fault of the conformance suite, test/clients: the line
 * is there because of it.
 */
'use strict'

const { randomUUID } = require('node:crypto')
const { EventEmitter, once } = require('node:events')
const {
  Session, Addresses, hostsOf,
  Trouble, defaultName, sqlstate, textOf,
  clock, pause, within, noop, promised,
} = require('./leader_election_base')

// SQLSTATEs, for _judge, _isStandby and _report. We add properties to an error. atLogin: it came
// before we could ask the server whether it is a primary. atStandby: a standby says it, or may do
// so. isFinal: to try again is of no use.
// A GRANT, a restore or an upgrade mends these: we try for ever. (Only _isStandby reads this list.)
const MAY_PASS = /^(42501|3F000|42883|42P01|LE003)$/
// These are the end, if they last: a refused login, wrong arguments, what this server or driver
// cannot do.
const LASTS = /^(28...|3D000|22023|0A000|25001)$/
const DID_NOTHING = /^(55P03|57014|40001)$/ // busy, canceled, or to be repeated: the lease is as it was
const NOT_INSTALLED = /^(3F000|42883)$/ // no such schema, or function
const NOT_THERE = /^(08...|57P..|53...)$/ // a server that starts, stops, or is full

/** We do not lead. The code is that of the server's error of the same meaning. */
class NotLeader extends Error { code = 'LE001' }

/**
 * @typedef {object} Options  Times are in milliseconds.
 * @property {string} election
 * @property {string} [candidate]  Default: host name, process ID and a random number; in
 *   Kubernetes the name of the pod.
 * @property {number} [rank]
 * @property {object} [metadata]  What view status shows of the leader.
 * @property {() => boolean | Promise<boolean>} [healthCheck]  Has the working loop made a turn
 *   lately? Unless it says true, we do not stand, and the lease is not renewed.
 * @property {number} [callTimeout=5000]  How long a call may take.
 * @property {number} [refusalTimeout=30000]  For how long all servers must have refused us (a
 *   wrong password, no such database, a bad argument) until that is the end.
 * @property {AbortSignal} [signal]  When it is aborted, the client is closed.
 * @property {(message: string, error?: Error) => void} [log]  Told what goes wrong, and of each
 *   'elected' and 'lost'. Default: console.error, for what goes wrong alone. What it throws is
 *   ignored.
 * @property {Connect | Connect[]} [connect]  Leadership: where to; each in turn. Default:
 *   PGSERVICE, PGHOST and so on.
 * @property {number} [slice=5000]  Leadership: how long one campaign waits, and so how soon a
 *   dead path is noticed. By default less, if the server would log a call that takes so long.
 * @property {'session'} [pooler]  Leadership: there is a pooler in session mode in between.
 * @property {object} [pool]  DetachedLeadership: a pool of pg.
 * @property {number} [interval=1000]  DetachedLeadership: how often a follower asks.
 * @property {Connect | Connect[]} [listen]  DetachedLeadership: where to LISTEN, which wakes a
 *   follower up.
 * @property {boolean} [unfenced]  SoleLeadership: fenced() passes, and fences nothing.
 *
 * @typedef {object | string} Connect  A config of pg, or a connection string. `host` may be a list
 *   with commas, and `port` one of as many; each address of a name is tried. `service` names a
 *   section of libpq's service file.
 *
 * @typedef {object} Grant  The right to lead, as the server has answered.
 * @property {number | null} term
 * @property {number} deadline  By clock().
 * @property {number} third  After so many ms we renew: a third of the time from the sending of the
 *   call to the deadline.
 * @property {boolean} yielding  We are asked to go.
 */

/**
 * What the four kinds share. Events: 'elected' (term), 'lost' (reason), 'yield' (term), 'error'
 * (error). One handler runs at a time; if it returns a promise, the next event waits for that. So
 * start the work in 'elected', but do not await its end there, nor close().
 *
 * A handler of 'elected' or 'lost' that fails is the end of this client, with its error: nobody
 * knows whether the work has begun, or has stopped. One of 'yield' that fails: we resign at once.
 * @abstract
 */
class Candidate extends EventEmitter {
  /** How many times this client was elected. */
  changes = 0

  // `_lead` is what the application knows: the grant in which we lead, which ends by the clock, too.
  // `_held` is what the server may take us to have. What is held, but not led, is given back.
  _lead = null
  _held = null
  _fatal = null // the error that was the end
  _fatalBy = Infinity // when wait() throws it, whatever hangs
  _isHeard = false // wait() has thrown it
  _ended = false // the loop has ended, too. (_closing: it is told to.)
  _waiting = 0 // calls of wait() that are going on: each will throw _fatal
  _check = null // the health check that has not answered yet
  _stands = false // the server may have a candidacy of ours
  _rest = 0 // ms, after we stood in vain; 0: campaign() has waited already
  _failures = 0 // in a row
  _refusal = null // a primary's that lasts: { since, address }
  _attempts = [] // when we stood, the last ten times
  _queue = Promise.resolve() // settled when the handlers of all events so far have returned
  _woken = new AbortController() // another one after each _wake()
  _closing = new AbortController() // aborted: no more standing, and no more renewing

  /** @param {Options} options */
  constructor(options) {
    super()
    const { election, signal } = options
    if (typeof election !== 'string') throw new TypeError('election: the name of one')
    this.election = election
    this.candidate = options.candidate ?? defaultName()
    this._options = options
    this._rank = options.rank
    this._metadata = JSON.stringify(options.metadata)
    this._callTimeout = options.callTimeout ?? 5000
    this._refusalTimeout = options.refusalTimeout ?? 30000
    const log = options.log ?? console.error.bind(console, `leader_election ${election}:`)
    this._log = (...words) => promised(() => log(...words)).catch(noop) // one that fails ends nothing
    this._logTerm = options.log ? this._log : noop // the console is for what goes wrong
    this._trouble = new Trouble(this._log)
    signal?.addEventListener('abort', () => this.close(), { signal: this._closing.signal })
    if (signal?.aborted) this._closing.abort()
    this._over = this._live() // settles when nothing is left to be done
  }

  /** Do we lead now? Never blocks. */
  get leads() {
    return this._lead !== null && this._clock() < this._lead.deadline
  }

  /** The term in which we lead now, else null. Never blocks. @returns {number | null} */
  get term() {
    return this.leads ? this._lead.term : null
  }

  /**
   * What the last call came to, for a probe or a log: `leads`, `standing` (also while we lose),
   * `unhealthy`, `unreachable: TEXT`, `refused: SQLSTATE TEXT`, `closed` (as soon as close() is
   * called), `failed: SQLSTATE TEXT`. Never blocks.
   */
  get state() {
    if (this._fatal) return `failed: ${sqlstate(this._fatal) ?? 'XX000'} ${textOf(this._fatal)}`
    if (this._isClosing) return 'closed'
    return this.leads ? 'leads' : this._trouble.text ?? 'standing'
  }

  /**
   * Waits until we lead: the term; null after so many ms, or as soon as close() is called. (In a
   * handler of 'lost', and in the work of run() after a loss, we do not lead again: there wait()
   * without `ms` ends with close(), or after an error, as follows.) Rejects with the error that was the end of this client, if there is one, when the lease
   * has been given back. That waits for handlers and work, but callTimeout at most: one of them may
   * wait for us.
   * @param {number} [ms]
   * @returns {Promise<number | null>}
   */
  async wait(ms = Infinity) {
    const by = clock() + ms
    this._waiting++
    while (!this.leads && !this._isOver && clock() < by) {
      await pause(Math.min(by, this._fatalBy) - clock(), this._woken.signal)
    }
    this._waiting--
    if (!this._fatal || !this._isOver) return this.term
    this._isHeard = true
    throw this._fatal
  }

  /**
   * Runs the work in each term, until we are closed. Its signal is aborted when leadership is
   * lost, and the lease is given back after its end. If it ends while we lead, we resign and
   * stand again. If it fails while we lead, that is the end: we close, and this promise rejects
   * with its error. But if it fails with LE001 or LE002, the fence knows that we do not lead:
   * that is a loss, 'not renewed'.
   * @param {(term: number | null, signal: AbortSignal) => any} work
   */
  async run(work) {
    this._work = work
    const lead = this._lead // we may lead already
    this._queue = this._queue.then(() => this._beginWork(lead))
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

  /**
   * Gives up leadership, and stands again after a second. Does not wait: the lease is given back
   * when the handlers of 'lost' have returned, and the work of run() has ended.
   */
  resign() {
    this._lose(this._lead?.asked ? 'yielded' : 'resigned')
  }

  /** What view status is to show of us: from the next renewal on, or when we lead next. */
  setMetadata(metadata) {
    this._metadata = JSON.stringify(metadata)
  }

  /**
   * Gives up, withdraws, ends connections. Resolves when all this is done and the handlers have
   * returned, or after callTimeout; then the rest goes on by itself. (A handler, or the work of
   * run(), that awaits close() waits for itself, and so for callTimeout.)
   */
  async close() {
    this._end('closed')
    await within(this._over, this._callTimeout).catch(noop)
  }

  // --- what each kind does in its own way

  /** Asks for the lease, for a while. @returns {Promise<Grant | null>} */
  async _stand() {}
  /** @param {Grant} lead @returns {Promise<Grant | null>} null: the term is over. */
  async _renew(lead) { return lead }
  /** Gives back `held`, if it is not null, and withdraws. Returns whether a server heard it. */
  async _leave(held) { return false }
  /** A call failed: ends the connection, if this kind has one and the error spoils it. */
  async _disconnectAfter(error) {}
  /** The client is to end: a call that waits for a server is to return soon. */
  _interrupt() {}
  _fence(client, term) {
    if (client.totalCount !== undefined) throw new TypeError('fenced: a client, not the pool')
    if (client.getTransactionStatus?.() === 'I') throw new Error('fenced: no transaction is open')
    return client.query('SELECT leader_election.assert_leader($1, $2)', [this.election, term])
  }
  _clock() { return clock() }

  get _isClosing() { return this._closing.signal.aborted }

  /** Is there nothing to wait for any more? After an error not before the lease is given back. */
  get _isOver() {
    return this._fatal ? this._ended || clock() >= this._fatalBy : this._isClosing
  }

  // --- the engine: one loop, which makes all calls, one after the other

  /** From the beginning to the end. Rejects as _tellError says. */
  async _live() {
    await null // until the constructors have returned
    while (this._held || !this._isClosing) {
      const woken = this._woken.signal // taken now: a _wake() during this turn counts, too
      let rest
      try {
        rest = await this._turn()
      } catch (error) {
        rest = await this._recover(error)
      }
      await pause(rest, this._lead?.over.signal ?? woken)
    }
    await this._leave(null).catch(noop)
    await this._queue
    this._ended = true
    this._wake() // wait() is to end, whatever becomes of the error
    if (this._fatal) await this._tellError()
  }

  /** Makes one step. Returns after how many ms the next one is due. */
  async _turn() {
    const lead = this._lead
    if (this._held && !lead) return this._giveBack() // losing
    if (!await this._isHealthy()) return this._sicken()
    if (!lead) await this._pace()
    if (this._isClosing) return 0
    this._stands = true
    const grant = lead ? await this._renew(lead) : await this._stand()
    this._answered()
    return this._take(lead, grant)
  }

  /**
   * Takes an answer: a grant, or null. `lead` is the leadership that we wanted to renew; null: we
   * stood. Returns after how many ms the next step is due. If `_held` is set and `_lead` is not
   * after this, that step gives it back.
   */
  async _take(lead, grant) {
    this._watch() // a loop that was blocked may come here before the timer [hangs, with a check]
    this._held = grant ?? lead
    if (this._lead !== lead || this._isClosing) return 0 // it was lost meanwhile
    if (lead && !grant) this._lose('not renewed')
    const failover = lead && grant && grant.term !== lead.term
    if (failover) await this._lose('failover') // the new term is not renewed meanwhile
    if (this._isClosing) return 0
    if (grant && this._clock() < grant.deadline) this._extend(grant)
    if (this._lead) return failover ? 0 : this._lead.third // 0: the handlers may have taken long
    return this._held ? 0 : this._rest
  }

  /** Ends losing: the handlers first, then the lease. */
  async _giveBack() {
    const held = this._held
    await this._queue // 'lost' was told, its handlers have returned, and the work has ended
    this._held = null // first: a call that fails is not made again and again [spin: server down]
    let heard
    try {
      heard = await this._leave(held)
    } catch (error) {
      if (this._isClosing) this._log(`the lease was not given back: ${textOf(error)}`)
      throw error // to _recover, which is silent after close()
    }
    if (heard) await pause(1000, this._closing.signal) // others have their turn [resign, alone]
    return 0
  }

  /** Asks the health check. One that hangs is ill, and is not asked again before it has answered. */
  async _isHealthy() {
    const { healthCheck } = this._options
    if (!healthCheck) return true
    this._check ??= promised(healthCheck).finally(() => (this._check = null))
    let answer
    try {
      answer = await within(this._check, this._callTimeout, this._closing.signal)
      if (answer === true) return true
    } catch (error) {
      answer = error
    }
    if (this._isClosing) return false // close() has ended our waiting: that is no answer
    this._trouble.begins('unhealthy', 'unhealthy', `unhealthy: the health check says: ${textOf(answer)}`)
    return false
  }

  /** Neither leads nor stands until the health check passes. */
  async _sicken() {
    this._lose('unhealthy')
    if (this._held) return 0
    if (this._stands) await this._leave(null).catch(noop)
    this._stands = false
    return 1000
  }

  /** Waits, so that we stand ten times a second at most, whatever made us stand again [spin]. */
  async _pace() {
    if (this._attempts.length === 10) {
      await pause(this._attempts.shift() + 1000 - clock(), this._closing.signal)
    }
    this._attempts.push(clock())
  }

  /** Sends a call that answers with a grant: what remains of the lease counts from its sending. */
  async _ask(call, values, share = 1) {
    const sent = this._clock()
    const ms = Math.min(this._callTimeout, (this._lead?.deadline ?? Infinity) - sent)
    const [row] = await this._call(`SELECT * FROM leader_election.${call}`, values, ms)
    if (!row) return null
    const lasts = Number(row.remaining_ms) * share // a number or text: the application says how
    return { ...row, term: Number(row.term), deadline: sent + lasts, third: lasts / 3 }
  }

  // --- the engine: errors

  /** What an error means for now. Returns after how many ms to try again. Silent after close(). */
  async _recover(error) {
    if (this._isClosing) return 0
    const isFinal = this._judge(error)
    this._report(error)
    await this._disconnectAfter(error)
    if (isFinal) this._fail(error)
    return this._addresses.areLeft && !this._lead ? 0 : this._backOff()
  }

  /**
   * Is this error the end? The server's word counts if it is a primary's: a standby has old
   * passwords, and does not know yet what was created just now [refused by the standby]. Before
   * login nobody knows which it is: there all addresses must have refused. And it has to last,
   * without another word of that address, unless somebody may mend it meanwhile [passing refusals].
   */
  _judge(error) {
    if (error.atStandby) return false // nor does it end what a primary has said
    const lasts = LASTS.test(error.code) && !error.atLogin
    const address = this._addresses.last
    if (lasts) this._refusal ??= { since: clock(), address }
    else if (this._refusal?.address === address) this._refusal = null
    if (error.isFinal) return true
    if (error.atLogin) return this._addresses.verdict !== null
    return lasts && clock() - this._refusal.since >= this._refusalTimeout
  }

  /** 0.1 s, doubled with each failure in a row; at random, up to half of it less. */
  _backOff() {
    const most = Math.min(5000, this._lead?.third ?? Infinity)
    return Math.min(100 * 2 ** this._failures++, most) * (1 - Math.random() / 2)
  }

  _report(error) {
    const code = sqlstate(error)
    const answered = code && !error.atStandby && !NOT_THERE.test(code)
    const hint = NOT_INSTALLED.test(code) ? ' (CREATE EXTENSION leader_election, or portable.sql?)' : ''
    if (answered) this._trouble.begins(`refused ${code}`, `refused: ${code} ${textOf(error)}${hint}`)
    else this._trouble.begins(`unreachable ${code}`, `unreachable: ${textOf(error)}`)
  }

  /** The server has answered as it should: what was wrong is over. */
  _answered() {
    this._failures = 0
    this._refusal = null
    this._trouble.ends()
  }

  // --- the engine: the leadership

  /** Begins to lead, if we do not, and takes over the grant's deadline. */
  _extend(grant) {
    if (!this._lead) {
      // over: when it is lost. asked: the application was, to yield. job: the work of run() in it
      const lead = { ...grant, over: new AbortController(), asked: false, job: null }
      this._lead = lead
      this.changes++
      this._tell('elected', lead.term, () => this._beginWork(lead))
      this._wake()
      this._logTerm(`elected leader of ${this._named(lead)}`) // last: it may resign
    } else {
      Object.assign(this._lead, grant)
    }
    this._watch()
    if (grant.yielding) this._askYield()
  }

  /**
   * Ends the leadership, if there is one. In this order: the term is gone; the handlers of 'lost'
   * are called, and the work ends; the engine gives the lease back. Returns a promise that settles
   * when handlers and work have ended. (A handler that returned it would wait for itself.) After the
   * deadline the reason is 'expired', whatever the caller says.
   */
  _lose(reason) {
    const lead = this._lead
    if (!lead) return this._queue
    if (!this.leads) reason = 'expired' // the timer is late: the loop was blocked [stopped]
    this._lead = null
    lead.over.abort()
    this._wake()
    const told = this._tell('lost', reason, () => lead.job)
    this._logTerm(`lost leadership of ${this._named(lead)}: ${reason}`) // now: handlers may take long
    within(told, this._callTimeout).catch(() => this._log('a handler or the work has not ended'))
    return told
  }

  /**
   * Ends the leadership if its deadline is over; else sets a timer to look again [stopped, leader's
   * network cut]. So this may be called at any time.
   */
  _watch() {
    clearTimeout(this._timer)
    if (!this.leads) return this._lose('expired')
    this._timer = this._alarm(Math.min(this._lead.deadline - this._clock(), 1000))
  }

  /** Watches again, soon: Node's timers stand still while the machine sleeps. */
  _alarm(ms) {
    return setTimeout(() => this._watch(), ms).unref()
  }

  /** Asks the application to go, once a term. */
  _askYield() {
    if (!this._lead || this._lead.asked) return this._queue
    this._lead.asked = true
    return this.listenerCount('yield') ? this._tell('yield', this.term) : this._lose('yielded')
  }

  /** Ends for good with this error. */
  _fail(error) {
    if (!this._fatal) this._fatalBy = clock() + this._callTimeout
    this._fatal ??= error || new Error(`failed without an error: ${error}`)
    this._end('error')
  }

  /** Tells the loop to end for good, and gives up. `_live` does the rest. */
  _end(reason) {
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

  // --- the engine: what the application does

  /** A leadership, as the log names it: that of SoleLeadership has no term. */
  _named({ term }) {
    return term === null ? `"${this.election}"` : `"${this.election}", term ${term}`
  }

  /** When all that was told before has ended: calls the handlers of an event, then `last`. */
  _tell(event, argument, last = noop) {
    this._queue = this._queue.then(async () => {
      for (const handler of this.rawListeners(event)) {
        try {
          await handler.call(this, argument)
        } catch (error) {
          this._log(`a handler of '${event}' failed:`, error)
          if (event === 'elected' || event === 'lost') this._fail(error)
          if (event === 'yield') this._lose('yielded')
        }
      }
      await last()
    })
    return this._queue
  }

  /**
   * Tells the error that was the end. One that nobody hears makes _over reject, and so ends the
   * process: no listener, no wait(), and neither run() nor close(), which listen to _over.
   */
  async _tellError() {
    if (this.listenerCount('error') > 0) await this._tell('error', this._fatal)
    else if (this._waiting === 0 && !this._isHeard) throw this._fatal
  }

  /** Starts the work of run() in a term, once. */
  _beginWork(lead) {
    this._watch() // the handlers of 'elected' may have taken until after the deadline
    if (!this._work || !lead || lead.job || lead.over.signal.aborted) return
    lead.job = promised(() => this._work(lead.term, lead.over.signal)).then(
      () => this._lead === lead && this.resign(),
      (error) => this._workFailed(lead, error))
  }

  _workFailed(lead, error) {
    this._watch() // a loop that was blocked may come here before the timer
    const lost = lead.over.signal.aborted
    const byFence = /^LE00[12]$/.test(error?.code) // the server knows better than we
    if (lost && (byFence || error?.name === 'AbortError')) return // as it should be
    if (!lost && !byFence) return this._fail(error)
    this._log('the work failed:', error)
    if (!lost) this._lose('not renewed')
  }
}

/**
 * A session candidate: it has a connection of its own, and loses leadership with it.
 *
 * It leads for half of what remains of the lease when a renewal is *sent*: the server ends the
 * session of a peer that went silent when that is over, and elects another.
 *
 * A call that fails may go on at the server: a campaign would be elected there, and nobody would
 * know [query timeout]. The connection is ended then, and after each leadership, and never used
 * again.
 */
class Leadership extends Candidate {
  _session = null
  _campaigning = false

  /** @param {Options} options */
  constructor(options) {
    const hosts = hostsOf(options.connect) // throws, if need be, before anything has begun
    super(options)
    this._addresses = new Addresses(hosts, this._refusalTimeout)
    this._slice = options.slice
  }

  /** Waits in a campaign for one slice; if that elects us, renew() says for how long we lead. */
  async _stand() {
    if (!this._session) await this._connect()
    if (this._isClosing) return null // _interrupt came too early to cancel what follows
    const sql = 'CALL leader_election.campaign($1, $2, timeout => $3::pg_catalog.interval)'
    const values = [this.election, this.candidate, `${this._slice} ms`]
    this._campaigning = true
    try {
      const [{ term }] = await this._call(sql, values, this._slice + this._callTimeout)
      if (term === null) return null
    } finally {
      this._campaigning = false
    }
    return this._renew()
  }

  /**
   * Connects to the next address, and joins. So we keep our place in line between two campaigns.
   */
  async _connect() {
    const address = await this._addresses.next(this._callTimeout)
    const session = new Session(address, this._callTimeout)
    this._session = session
    session.client.once('end', () => { // [backend terminated]
      if (this._session === session) this._lose('connection lost')
    })
    const server = await this._logIn(session, address)
    if (server.standby) {
      throw Object.assign(new Error(`${address.name} is a standby`), { atStandby: true })
    }
    await this._prepare(session, server)
    // auto_renew: where the network is cut without a word, a session lives on at the server, and
    // may be elected. The worker would renew that lease, which nobody knows of, while it lives.
    await this._call(`SELECT leader_election.join($1, $2, rank => $3::pg_catalog.int4,
      metadata => $4::pg_catalog.jsonb, auto_renew => false)`,
    [this.election, this.candidate, this._rank, this._metadata])
    this._trouble.pauses() // it has not ended: campaign() may still be refused
  }

  /** The first query counts as a part of the login: a pooler logs in at the server only then. */
  async _logIn(session, address) {
    try {
      await session.open()
      const [server] = await session.query(`SELECT pg_catalog.pg_backend_pid() AS pid,
        pg_catalog.pg_is_in_recovery() AS standby,
        pg_catalog.date_part('epoch', pg_catalog.current_setting('statement_timeout')
          ::pg_catalog.interval) AS timeout,
        pg_catalog.date_part('epoch', pg_catalog.current_setting('log_min_duration_statement')
          ::pg_catalog.interval) AS logged`)
      this._addresses.answered(address)
      return server
    } catch (error) {
      this._addresses.refused(address, error)
      throw Object.assign(error, { atLogin: true })
    }
  }

  /** Makes sure that campaign() may wait: no pooler is in between, no timeout [behind a pooler]. */
  async _prepare(session, { pid, timeout, logged }) {
    if (this._options.pooler === 'session') {
      this._chooseSlice(1000 * timeout, 1000 * logged)
      return // what is set would be set for others, too
    }
    if (Number(pid) !== session.client.processID) {
      const text = "a pooler: use DetachedLeadership, or say pooler: 'session' if it is in session mode"
      throw Object.assign(new Error(`this is ${text}`), { code: '0A000', isFinal: true })
    }
    const names = ['statement_timeout', 'idle_session_timeout', 'transaction_timeout']
    await session.query(`SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings
      WHERE name OPERATOR(pg_catalog.=) ANY ($1)`, [names])
    this._chooseSlice(0, 1000 * logged)
  }

  /**
   * A campaign is shorter than what the server cancels, and than what it logs as slow; but where
   * it logs even short calls, short slices would only fill its log faster [slices].
   * @param {number} timeout  statement_timeout @param {number} logged  log_min_duration_statement
   */
  _chooseSlice(timeout, logged) {
    if (this._options.slice !== undefined) return
    this._slice = timeout > 0 ? Math.min(5000, 0.8 * timeout) : 5000
    if (logged >= 250) this._slice = Math.min(this._slice, 0.8 * logged)
    if (logged <= 0 || logged >= 250 || this._warned) return
    this._warned = true
    this._log(`log_min_duration_statement is ${logged} ms: the server will log each campaign`)
  }

  _renew() {
    const call = 'renew($1, metadata => $2::pg_catalog.jsonb)'
    return this._ask(call, [this.election, this._metadata], 0.5)
  }

  _call(sql, values, ms) {
    return this._session.query(sql, values, ms)
  }

  /** Ends the connection in any case, and with it what is held. */
  async _leave() {
    const session = this._session
    try {
      if (!session?.works) return false // the server has ended our candidacy, or will
      await session.query('SELECT leader_election.leave($1)', [this.election])
      return true
    } finally {
      await this._disconnect()
    }
  }

  /**
   * Ends the connection. If it holds a lease, _leave does that later, when the handlers of 'lost'
   * have returned. The reason is 'connection lost' for all errors, also those of the server.
   */
  async _disconnectAfter(error) {
    if (this._lead && DID_NOTHING.test(error.code)) return // the deadline decides
    this._lose('connection lost')
    if (!this._held) await this._disconnect()
  }

  async _disconnect() {
    const session = this._session
    this._session = null
    await session?.end()
  }

  /** Cancels a campaign; to end its connection would leave a line in its log [slices: SIGTERM]. */
  _interrupt() {
    if (this._campaigning) this._session.cancel()
    else this._session?.giveUpConnecting()
  }
}

// All that a detached candidate knows of where it connects to. It counts as one address.
const THE_POOL = { name: 'the pool' }

/**
 * A detached candidate, over any connections of the application's pool, also through PgBouncer in
 * transaction mode.
 */
class DetachedLeadership extends Candidate {
  _addresses = new Addresses([THE_POOL], this._refusalTimeout)
  _rest = this._options.interval ?? 1000
  _request = randomUUID() // until it is granted: no grant is lost with its answer [lost answer]

  /** @param {Options} options */
  constructor(options) {
    const hosts = options.listen && hostsOf(options.listen) // throws before anything has begun
    super(options)
    if (hosts) this._listen(new Addresses(hosts, Infinity))
  }

  async _stand() {
    const call = `acquire($1, $2, rank => $3::pg_catalog.int4, metadata => $4::pg_catalog.jsonb,
      request => $5::pg_catalog.uuid)`
    const values = [this.election, this.candidate, this._rank, this._metadata, this._request]
    const grant = await this._ask(call, values)
    if (grant) this._request = randomUUID()
    return grant
  }

  _renew({ term }) {
    const call = 'renew($1, $2, metadata => $3::pg_catalog.jsonb)'
    return this._ask(call, [this.election, term, this._metadata])
  }

  async _leave(held) {
    if (held) await this._call('SELECT leader_election.release($1, $2)', [this.election, held.term])
    else await this._call('SELECT leader_election.leave($1, $2)', [this.election, this.candidate])
    return true
  }

  /** Calls over a connection of the pool. The time that it takes to get one counts. */
  async _call(sql, values, ms = this._callTimeout) {
    const end = clock() + ms
    const client = await this._borrow(ms)
    let broken = true
    try {
      const { rows } = await within(client.query(sql, values), end - clock())
      broken = false
      return rows
    } catch (error) {
      // Without an answer of the server, which has a severity, the call may go on there.
      if (error.severity && !/^(08|57P)/.test(error.code)) {
        error.atStandby = await this._isStandby(error, client)
        broken = error.atStandby // the next connection may be one to the primary
      }
      throw error
    } finally {
      client.off('error', noop)
      client.release(broken)
    }
  }

  async _borrow(ms) {
    const connecting = promised(() => this._options.pool.connect())
    try {
      const client = await within(connecting, ms)
      this._addresses.answered(THE_POOL)
      return client.on('error', noop)
    } catch (error) {
      connecting.then((client) => client.release(false), noop) // it comes too late
      this._addresses.refused(THE_POOL, error)
      throw Object.assign(error, { atLogin: true })
    }
  }

  /** Does a standby say this? True also if we cannot find out. Asks only where it matters. */
  async _isStandby({ code }, client) {
    if (code === '25006') return true // read only
    if (!MAY_PASS.test(code) && !LASTS.test(code)) return false
    const asking = promised(() => client.query('SELECT pg_catalog.pg_is_in_recovery() AS standby'))
    const answer = await within(asking, this._callTimeout).catch(noop)
    return answer?.rows[0].standby !== false
  }

  /** Listens, on a connection of its own, and wakes the follower up when something has changed. */
  async _listen(addresses) {
    const { signal } = this._closing
    const trouble = new Trouble(this._log)
    while (!signal.aborted) {
      const session = new Session(await addresses.next(this._callTimeout), this._callTimeout)
      session.client.on('notification', ({ payload }) => {
        if (payload.includes(JSON.stringify(this.election))) this._wake()
      })
      try {
        await session.open()
        await session.query('LISTEN leadership_changed')
        trouble.ends()
        this._wake() // nobody told us before
        await once(session.client, 'end', { signal })
      } catch (error) {
        if (!signal.aborted) trouble.begins(sqlstate(error), `cannot listen: ${textOf(error)}`)
      }
      await session.end()
      // Not all at the same time: their connections may have ended together.
      await pause(5000 * (1 - Math.random() / 2), signal)
    }
  }
}

/**
 * Always leads, alone, without a term, and asks nobody, no server and no health check. For a
 * laptop: never chosen automatically. After resign() it leads again at once.
 */
class SoleLeadership extends Candidate {
  /** @param {Options} options */
  constructor(options) {
    super({ ...options, healthCheck: undefined })
  }

  async _stand() {
    return { term: null, deadline: Infinity, third: Infinity, yielding: false }
  }

  _fence() {
    if (!this._options.unfenced) throw new Error('fenced: SoleLeadership has no term')
  }
}

/**
 * For tests: leads as the test says, by a clock that the test moves. Await each call: the
 * handlers have returned then.
 */
class FakeLeadership extends Candidate {
  _now = 0
  _last = 0

  /** @param {Partial<Options>} [options] */
  constructor(options) {
    super({ election: 'fake', ...options })
  }

  /**
   * Elects us, by default in the next term, for a lease (in ms) by the test's clock. As in _take:
   * not before the handlers of 'lost' have returned, and the work has ended; and not when closed.
   */
  async elect(term = this._last + 1, lease = 15000) {
    this._last = term
    let queue
    do await (queue = this._lose('failover'))
    while (queue !== this._queue) // another call has elected us meanwhile, say
    if (!this._isClosing) this._extend({ term, deadline: this._now + lease })
    await this._queue
  }

  /** @param {string} [reason] */
  lose(reason = 'connection lost') {
    return this._lose(reason)
  }

  askYield() {
    return this._askYield()
  }

  /** Moves the clock by so many milliseconds. */
  advance(ms) {
    this._now += ms
    return this._watch()
  }

  _clock() { return this._now }
  _alarm() {}
  async _fence() {}
  async _turn() { return Infinity }
}

module.exports = { Leadership, DetachedLeadership, SoleLeadership, FakeLeadership, NotLeader }
