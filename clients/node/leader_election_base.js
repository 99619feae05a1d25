/**
 * What the candidates in leader_election.js stand on: connections, where to connect, words and
 * time. Nothing in here knows of elections. Copy it beside that file. Words in brackets, [like
 * these], name the faults of the conformance suite, as they do there.
 */
'use strict'

const { randomBytes } = require('node:crypto')
const dns = require('node:dns')
const { once } = require('node:events')
const fs = require('node:fs')
const net = require('node:net')
const os = require('node:os')
const path = require('node:path')
const { setTimeout: sleep, setImmediate: nextTurn } = require('node:timers/promises')
const { format } = require('node:util')
const { isMainThread, threadId } = require('node:worker_threads')
const { Client, Connection } = require('pg')

const LOGIN_REFUSED = /^(28...|3D000|42501)$/ // SQLSTATEs. 42501: no CONNECT on the database

// --- connections

/** A connection of our own, over which one call is made at a time. */
class Session {
  /**
   * Can a call be made? False before the login and after the end; and after a call that was not
   * answered, for it may go on at the server.
   */
  works = false

  constructor({ config, host, port, address }, callTimeout) {
    this._callTimeout = callTimeout
    // pg's query_timeout would leave a call going on. Node has no TCP_USER_TIMEOUT.
    const limits = { query_timeout: 0, keepAlive: true, keepAliveInitialDelayMillis: 5000 }
    this.client = new Client({ ...config, ...limits }).on('error', noop)
    this.client.once('end', () => (this.works = false))
    // Where to is an address; the password and the certificate are those of the host's name.
    Object.assign(this.client.connectionParameters, { host, port })
    Object.assign(this.client, { host: address, port })
    this._expectCertificateOf(host)
  }

  /** pg expects the certificate of what it connects to; of another name, if that is an address. */
  _expectCertificateOf(host) {
    const { connection } = this.client
    if (!connection.ssl || net.isIP(host)) return
    const { key } = connection.ssl // pg makes it not enumerable: the next line does not copy it
    connection.ssl = { servername: host, ...(connection.ssl === true ? {} : connection.ssl) }
    if (key) connection.ssl.key = key
  }

  async open() {
    await within(this.client.connect(), this._callTimeout)
    this.works = true
  }

  /** @returns {Promise<object[]>} rows */
  async query(sql, values = [], ms = this._callTimeout) {
    if (this._canceling) await this._canceling // else the cancel may hit this call
    try {
      const { rows } = await within(this.client.query(sql, values), ms)
      return rows
    } catch (error) {
      if (!error.severity) this.works = false
      throw error
    }
  }

  /** Asks the server to cancel the present call. That call fails then, or in callTimeout. */
  cancel() {
    const { host, port, processID, secretKey } = this.client
    const messenger = new Connection({}).on('error', noop)
    messenger.on('connect', () => messenger.cancel(processID, secretKey))
    if (host.startsWith('/')) messenger.connect(`${host}/.s.PGSQL.${port}`)
    else messenger.connect(port, host)
    // The server closes this second connection when it has signalled the first one's process.
    this._canceling = within(once(messenger, 'end'), this._callTimeout).catch(noop)
      .finally(() => messenger.stream.destroy())
    setTimeout(() => this.client.connection.stream.destroy(), this._callTimeout).unref()
  }

  /** Ends an attempt to connect, unless a server has answered: a login had better be finished. */
  giveUpConnecting() {
    const { stream } = this.client.connection
    if (stream.connecting) stream.destroy()
  }

  /** Says goodbye, if that can be heard: servers and poolers log other ends as errors. */
  async end() {
    const canBeHeard = this.works
    this.works = false
    await this._canceling
    if (canBeHeard) await within(this.client.end(), this._callTimeout).catch(noop)
    this.client.connection.stream.destroy()
  }
}

/**
 * Where to connect. One *round* tries each address once: a list in a config has several, and so
 * may a name. Names are resolved anew in each round, which begins behind the address that was
 * tried last: it is the one that was lost.
 */
class Addresses {
  last = undefined // the name of the address that was tried last
  _round = []
  _known = [] // the addresses of the present round
  _refusals = new Map() // by name: { since, address, error }

  constructor(hosts, refusalTimeout) {
    this._hosts = hosts
    this._known = hosts
    this._refusalTimeout = refusalTimeout
  }

  /** Are there more to be tried before we have a rest? */
  get areLeft() {
    return this._round.length > 0
  }

  /** The address to be tried next. Begins a new round if need be: ms is for each host's lookup. */
  async next(ms) {
    if (!this.areLeft) {
      this._known = (await Promise.all(this._hosts.map((host) => resolve(host, ms)))).flat()
      const last = this._known.findIndex(({ name }) => name === this.last)
      this._round = [...this._known.slice(last + 1), ...this._known.slice(0, last + 1)]
    }
    const address = this._round.shift()
    this.last = address.name
    return address
  }

  /** We could not log in. If that was no refusal, it ends the refusals of this address. */
  refused(address, error) {
    if (/^SASL/.test(error.message)) error.code ??= '28P01' // pg's own: there is no password
    if (!LOGIN_REFUSED.test(error.code)) return this.answered(address)
    const { since } = this._refusals.get(address.name) ?? { since: clock() }
    this._refusals.set(address.name, { since, address, error })
  }

  /**
   * We could log in, or heard no refusal. A host whose name could not be looked up is tried by that
   * name: this is the last word of all its addresses then.
   */
  answered({ name, host, port, address }) {
    this._refusals.delete(name)
    for (const [refused, { address: of }] of this._refusals) {
      if (address === host && of.host === host && of.port === port) this._refusals.delete(refused)
    }
  }

  /** The last one's error, if all addresses have refused us for refusalTimeout; else null. */
  get verdict() {
    const refusals = this._known.map(({ name }) => this._refusals.get(name))
    const last = (refusal) => refusal && clock() - refusal.since >= this._refusalTimeout
    return refusals.every(last) ? refusals.at(-1).error : null
  }
}

/** A host's addresses [one name]. One that has none is tried by its name: the error says why. */
async function resolve(at, ms) {
  const { host, port, hostaddr } = at
  let found = [{ address: hostaddr ?? host }]
  if (!hostaddr && !host.startsWith('/')) {
    found = await within(dns.promises.lookup(host, { all: true }), ms).catch(() => found)
  }
  return found.map(({ address }) => ({ ...at, address, name: `${address} port ${port}` }))
}

/** The hosts that configs of pg name, in order. What is missing pg takes from PGHOST and so on. */
function hostsOf(configs = {}) {
  return [configs].flat().flatMap((given) => {
    const config = withService(typeof given === 'string' ? { connectionString: given } : given)
    const named = config.host || config.connectionString
    const pg = new Client(config).connectionParameters
    const hosts = list(pg.host)
    const hostaddrs = list(config.hostaddr ?? (named ? undefined : process.env.PGHOSTADDR))
    const ports = portsOf(config, pg.port)
    const most = Math.max(hosts.length, hostaddrs.length)
    if (ports.length > 1 && ports.length !== most) {
      throw new Error(`there are ${most} hosts, and ${ports.length} ports`)
    }
    return Array.from({ length: most }, (_, i) => {
      const port = Number(ports[i % ports.length])
      return { config, host: hosts[i % hosts.length], hostaddr: hostaddrs[i], port }
    })
  })
}

/** pg takes the first port of a list. */
function portsOf({ port, connectionString }, first) {
  const { PGPORT } = process.env
  const inString = /[?&]port=([\d,]+)/.exec(connectionString)?.[1]
  return list(port ?? inString ?? (parseInt(PGPORT) === first ? PGPORT : first))
}

const list = (text) => (text === undefined ? [] : String(text).split(','))

/** With what the service file says of a service, which pg does not read [service file]. */
function withService(config) {
  const inString = /[?&]service=/.test(config.connectionString)
  if (inString || (config.service && config.connectionString)) {
    throw new Error('a service and a connection string: say one of them')
  }
  const service = config.service ?? process.env.PGSERVICE
  return service && !config.connectionString ? { ...serviceConfig(service), ...config } : config
}

const PG_READS = /^(host|hostaddr|port|user|password|application_name|options|client_encoding)$/
// We always want a primary, and have timers and keepalives of our own.
const IS_SO_ANYHOW = /^(target_session_attrs|connect_timeout|tcp_user_timeout|keepalives.*)$/

/** A section of the service file as a config of pg. */
function serviceConfig(service) {
  const { dbname, sslmode, sslcert, sslkey, sslrootcert, ...rest } = serviceSection(service)
  const unknown = Object.keys(rest).find((key) => !PG_READS.test(key) && !IS_SO_ANYHOW.test(key))
  if (unknown) throw new Error(`service "${service}": pg has no setting ${unknown}`)
  const config = dbname === undefined ? rest : { ...rest, database: dbname }
  const tls = Object.entries({ sslmode, sslcert, sslkey, sslrootcert }).filter(([, value]) => value)
  if (tls.length > 0) { // pg knows what these mean in a connection string
    config.ssl = new Client({ connectionString: `postgresql:///?${new URLSearchParams(tls)}` }).ssl
  }
  return config
}

/** A section of the file where libpq would find it. */
function serviceSection(service) {
  const { PGSERVICEFILE, PGSYSCONFDIR } = process.env
  const files = [PGSERVICEFILE ?? path.join(os.homedir(), '.pg_service.conf'),
    path.join(PGSYSCONFDIR ?? '/etc/postgresql-common', 'pg_service.conf')]
  for (const file of files.filter((name) => fs.existsSync(name))) {
    const lines = fs.readFileSync(file, 'utf8').split('\n').map((line) => line.trim())
    const begin = lines.indexOf(`[${service}]`) + 1
    if (begin === 0) continue
    const end = lines.findIndex((line, i) => i >= begin && line.startsWith('['))
    const settings = lines.slice(begin, end < 0 ? undefined : end)
      .filter((line) => line && !line.startsWith('#'))
    return Object.fromEntries(settings.map((line) => line.split(/=(.*)/, 2)))
  }
  throw new Error(`no service "${service}" in ${files.join(' or ')}`)
}

// --- words

/** What is wrong now, if anything. Logged when it begins, and then once a minute; and its end. */
class Trouble {
  text = null
  _logged = new Map() // when, by kind of trouble: several may take turns

  constructor(log) {
    this._log = log
  }

  begins(kind, text, line = text) {
    this.text = text
    if (clock() - (this._logged.get(kind) ?? -Infinity) < 60000) return
    this._logged.set(kind, clock())
    this._log(line)
  }

  /** We try again, and do not know yet: nothing is wrong now, and nothing is logged. */
  pauses() {
    this.text = null
  }

  ends() {
    this.text = null
    if (this._logged.size > 0) this._log('all is well again')
    this._logged.clear()
  }
}

/** Host, process and a random number; or the pod, and the process if it is not its first one. */
function defaultName() {
  const { KUBERNETES_SERVICE_HOST, POD_NAME, HOSTNAME } = process.env
  const pod = KUBERNETES_SERVICE_HOST && (POD_NAME || HOSTNAME)
  const thread = isMainThread ? '' : `-${threadId}`
  let name = `${os.hostname()}-${process.pid}-${randomBytes(2).toString('hex')}`
  if (pod) name = process.pid === 1 ? `${pod}${thread}` : `${pod}-${process.pid}${thread}`
  return name.slice(-200) // the end tells them apart
}

/** Not Node's codes, such as EPIPE */
const sqlstate = ({ code }) => (/^(?=.*\d)[0-9A-Z]{5}$/.test(code) ? code : undefined)

/** In one line. Node has errors without a message, for several addresses of a name. */
function textOf(error) {
  const text = error?.message || error?.errors?.[0]?.message || error?.code || error
  return format(text).replace(/\s+/g, ' ')
}

// --- time

/**
 * Milliseconds on a clock that goes on while the machine sleeps. The monotonic clock of Node
 * stands still then (on Linux), and a lease that ran out during the sleep would look valid.
 * os.uptime() goes on, but in steps: it tells for how long the machine slept. A paused virtual
 * machine does not know: fence.
 */
function clock() {
  slept = Math.max(slept, os.uptime() * 1000 - performance.now())
  return performance.now() + slept
}

// os.uptime() less performance.now(): a constant, plus the time for which the machine slept.
let slept = -Infinity

const noop = () => {}
const promised = async (call) => call() // what it throws becomes a rejection

// Ends early, without an error, when signal is aborted. Node's timers end at 2 ** 31 ms, and Node
// 24 warns of negative ones. A pause without end does not keep the process alive.
const pause = (ms, signal) =>
  sleep(Math.max(0, Math.min(ms, 1e9)), null, { signal, ref: ms < 1e9 }).catch(noop)

/**
 * The outcome of promise; or an error after ms, or when signal is aborted. (pg itself would wait
 * for ever [connections forgotten].) What promise stands for is not stopped: the caller has to.
 */
function within(promise, ms, signal) {
  const answered = new AbortController()
  signal?.addEventListener('abort', () => answered.abort(), { signal: answered.signal })
  // If the event loop was blocked, the answer may be there: setImmediate comes after reading it.
  const late = pause(ms, answered.signal).then(() => nextTurn())
    .then(() => Promise.reject(new Error(`no answer in ${Math.round(ms)} ms`)))
  return Promise.race([promise, late]).finally(() => answered.abort())
}

module.exports = {
  Session, Addresses, hostsOf,
  Trouble, defaultName, sqlstate, textOf,
  clock, pause, within, noop, promised,
}
