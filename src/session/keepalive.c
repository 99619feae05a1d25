/*-------------------------------------------------------------------------
 *
 * keepalive.c
 *		Noticing that this session's client is gone.
 *
 * A host that vanishes sends no FIN: with the kernel's defaults its session,
 * and so its leadership, would go on for hours.  And a backend that runs a
 * query does not look at its socket.  While a session stands, the settings
 * below are made tighter, unless they are tighter already, so that one lost
 * probe ends nothing, and the session of a dead peer ends
 *
 * - while nothing is on its way to it, after the shortest lease for which it
 *	 stands, rounded up to a multiple of 3 s, by keepalives;
 *
 * - with data on its way, for which the kernel sends no keepalives, within two
 *	 leases (30 s at least), by tcp_user_timeout.  That cannot be as short: it
 *	 counts the time in which the client reads nothing and its window is
 *	 closed, too, and a client may have something else to do.
 *
 * On Linux a tcp_user_timeout also replaces the count of keepalives: an idle
 * session would end that late.  So a timer (watch_socket()) sets the kernel's
 * option to what keepalives take while they go unanswered and no data is on its
 * way, and afterwards to what the setting says again.  (Not to 0: data that is
 * sent just then would have the system's number of retries, which may be over
 * before the lease.)  An error of the session ends all timers: this one is
 * started again when the transaction is over.  Without it the session of a dead
 * peer ends later, but it ends.
 *
 * Invariants:
 *
 * - No value of ours ends a session before that lease.  Without an answer from
 *	 the server, pg_leader goes on leading for a lease, and the clients for half
 *	 of it.  If the session of a leader whose network is cut ended sooner,
 *	 another candidate would be elected, and both would work.  So a lease that
 *	 becomes longer counts at once, and keepalives that are tighter only in part
 *	 are replaced.  Where others' values are tighter, renew() grants no more.
 *
 * - What is tighter stays as it is, also when the configuration file is changed:
 *	 its client may not hear of that.
 *
 * - What the session sets itself stays, then and afterwards; only the value
 *	 that RESET would give is replaced, and put back in the end.  (It counts as
 *	 an override from then on: the session follows the configuration file no
 *	 more in these settings.)
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#ifdef __linux__
#include <linux/sockios.h>
#endif

#include "access/xact.h"
#include "miscadmin.h"
#include "session/session.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#define SHORTEST_MS		3000	/* the kernel counts keepalives in seconds */
#define SHORTEST_UNSENT_MS	30000
#define BUSY_CHECK_MS	200		/* a busy backend looks at its socket */
#define PROBES			2
#define MOST_PROBES		127		/* Linux has no more, ... */
#define LONGEST_IDLE_S	32767	/* ... and waits no longer for the first one */

#if defined(TCP_USER_TIMEOUT) && defined(TCP_INFO) && defined(SIOCOUTQ)
#define WATCHES_SOCKET
#endif

typedef struct ServerSetting
{
	const char *name;
	int		   *variable;
	bool		is_ours;
	int			value;			/* that we have given it */
	int			reset_value;	/* what it was before */
} ServerSetting;

enum
{
	KEEPALIVES_IDLE, KEEPALIVES_INTERVAL, KEEPALIVES_COUNT, USER_TIMEOUT_MS,
	CONNECTION_CHECK
};

static ServerSetting settings[] = {
	[KEEPALIVES_IDLE] = {"tcp_keepalives_idle", &tcp_keepalives_idle},
	[KEEPALIVES_INTERVAL] = {"tcp_keepalives_interval", &tcp_keepalives_interval},
	[KEEPALIVES_COUNT] = {"tcp_keepalives_count", &tcp_keepalives_count},
	[USER_TIMEOUT_MS] = {"tcp_user_timeout", &tcp_user_timeout},
	[CONNECTION_CHECK] = {"client_connection_check_interval",
	&client_connection_check_interval},
};

#ifdef WATCHES_SOCKET
static TimeoutId watch_timer = MAX_TIMEOUTS;	/* not registered yet */
static int	watch_every = 0;	/* milliseconds; 0: it is not to run */
static int	idle_timeout;		/* what keepalives take, in milliseconds */
#endif

static void
assign(ServerSetting *setting, int value)
{
	char		number[32];

	/*
	 * PGC_S_OVERRIDE is not transactional, gives way to what the session has
	 * SET, and becomes what RESET gives, so that RESET ALL leaves it alone.
	 * What the platform or the kind of socket does not have is not an error.
	 */
	snprintf(number, sizeof(number), "%d", value);
	(void) set_config_option(setting->name, number, PGC_USERSET, PGC_S_OVERRIDE,
							 GUC_ACTION_SET, true, DEBUG1, false);
}

#ifdef WATCHES_SOCKET
/*
 * What the timer does.  It interrupts this process anywhere, and so makes
 * nothing but a few system calls.
 *
 * An idle connection to a dead peer is left to the count of keepalives: from
 * the first one without an answer until the peer is heard of again.
 */
static void
watch_socket(void)
{
	const ServerSetting *s = &settings[USER_TIMEOUT_MS];
	struct tcp_info info;
	socklen_t	size = sizeof(info);
	int			unsent = 0;
	int			present = 0;
	int			wanted;
	int			save_errno = errno;
	int			sock = LeClientSocket();

	/* What the session has set itself since stays. */
	if (s->is_ours && *s->variable == s->value &&
		getsockopt(sock, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
		ioctl(sock, SIOCOUTQ, &unsent) == 0)
	{
		wanted = info.tcpi_probes > 0 && unsent == 0 ? idle_timeout : s->value;
		size = sizeof(present);
		if (getsockopt(sock, IPPROTO_TCP, TCP_USER_TIMEOUT, &present, &size) == 0 &&
			present != wanted)
			(void) setsockopt(sock, IPPROTO_TCP, TCP_USER_TIMEOUT, &wanted,
							  sizeof(wanted));
	}
	errno = save_errno;
}

static bool
is_tcp(void)
{
	struct tcp_info info;
	socklen_t	size = sizeof(info);

	return getsockopt(LeClientSocket(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
}

/*
 * See to it that the timer runs, if it is to: an error of the session may have
 * ended it.  Can be called while a transaction ends.
 */
static void
keep_watching(void)
{
	if (watch_every > 0 && !get_timeout_active(watch_timer))
		enable_timeout_every(watch_timer,
							 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														 watch_every),
							 watch_every);
}

static bool cleanup_registered = false;

static void
on_cleanup(void *arg)
{
	cleanup_registered = false;
	keep_watching();
}

/*
 * An error in a transaction that has failed already fires no event, but ends
 * all timers.  The transaction's memory is freed when it is over: the timer is
 * started then.  (This event comes twice if something fails in the abort
 * itself.)
 */
static void
on_xact_event(XactEvent event, void *arg)
{
	static MemoryContextCallback cleanup = {.func = on_cleanup};

	if (watch_every == 0)
		return;
	keep_watching();
	if (event == XACT_EVENT_ABORT && !cleanup_registered)
	{
		cleanup_registered = true;
		MemoryContextRegisterResetCallback(TopTransactionContext, &cleanup);
	}
}

static void
on_subxact_event(SubXactEvent event, SubTransactionId own,
				 SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		keep_watching();
}

/*
 * Look at the socket so often, in milliseconds; 0: no more.
 */
static void
set_watch(int every)
{
	if (watch_every > 0)
		disable_timeout(watch_timer, false);
	watch_every = every;
	keep_watching();
}
#endif

/*
 * Once per backend, before its first candidacy: this may fail.
 */
void
le_keepalive_init(void)
{
#ifdef WATCHES_SOCKET
	if (watch_timer != MAX_TIMEOUTS || MyProcPort == NULL || !is_tcp())
		return;
	RegisterXactCallback(on_xact_event, NULL);
	RegisterSubXactCallback(on_subxact_event, NULL);
	watch_timer = RegisterTimeout(USER_TIMEOUT, watch_socket);
#endif
}

/*
 * Put back what was replaced.
 */
static void
restore(void)
{
	for (int i = 0; i < lengthof(settings); i++)
	{
		ServerSetting *s = &settings[i];

		if (s->is_ours)
			assign(s, s->reset_value);
		s->is_ours = false;
	}
#ifdef WATCHES_SOCKET
	set_watch(0);
#endif
}

/*
 * Replace a setting, unless the session has SET it.
 */
static void
replace(ServerSetting *s, int value)
{
	if (!s->is_ours)
		s->reset_value = atoi(GetConfigOptionResetString(s->name));
	s->value = value;
	assign(s, value);
	s->is_ours = *s->variable == value;
	if (!s->is_ours)
		assign(s, s->reset_value);
}

/*
 * After how many seconds keepalives end the session of a peer that is silent
 * from now on; 0: never.
 */
static int64
keepalives_take(void)
{
	return pq_getkeepalivesidle(MyProcPort) +
		(int64) pq_getkeepalivesinterval(MyProcPort) *
		pq_getkeepalivescount(MyProcPort);
}

/*
 * Have keepalives end the session after that time, unless they end it sooner
 * already.  Only together they say when: an interval of one second that stayed
 * would end it, with our other values, too soon.  If the session has SET such
 * an interval (idle time), there are more probes, or they begin later.
 */
static void
tighten_keepalives(int limit_s, int step_s)
{
	int64		taken = keepalives_take();
	int			interval_s;

	if (taken > 0 && taken <= limit_s)
	{
		/*
		 * Keep these values while the session stands: if a reload of the
		 * configuration file changed them, its client would not hear of that.
		 */
		replace(&settings[KEEPALIVES_IDLE], pq_getkeepalivesidle(MyProcPort));
		replace(&settings[KEEPALIVES_INTERVAL],
				pq_getkeepalivesinterval(MyProcPort));
		replace(&settings[KEEPALIVES_COUNT], pq_getkeepalivescount(MyProcPort));
		return;
	}
	replace(&settings[KEEPALIVES_IDLE], step_s);
	replace(&settings[KEEPALIVES_INTERVAL], step_s);
	replace(&settings[KEEPALIVES_COUNT], PROBES);
	interval_s = Max(pq_getkeepalivesinterval(MyProcPort), 1);
	taken = keepalives_take();
	if (taken > 0 && taken < limit_s)
		replace(&settings[KEEPALIVES_COUNT],
				Min(PROBES + (limit_s - taken - 1) / interval_s + 1,
					MOST_PROBES));
	taken = keepalives_take();
	if (taken > 0 && taken < limit_s)
		replace(&settings[KEEPALIVES_IDLE],
				Min(step_s + limit_s - taken, LONGEST_IDLE_S));
}

/*
 * Make the session notice a dead client in time for that lease (see above).
 */
static void
tighten(int64 lease_duration)
{
	int			limit_ms = Min(Max(lease_duration / 1000, SHORTEST_MS), INT_MAX);
	int			limit_s = (limit_ms - 1) / 1000 + 1;
	int			step_s = (limit_s - 1) / (PROBES + 1) + 1;
	int			unsent_ms = Max(limit_ms > INT_MAX / 2 ? INT_MAX : limit_ms * 2,
								SHORTEST_UNSENT_MS);
	bool		watches = tcp_user_timeout == 0 || tcp_user_timeout > limit_ms;

	tighten_keepalives(limit_s, step_s);

	/* Another value than before shows whether the session has SET it. */
	if (tcp_user_timeout > 0)
		unsent_ms = Min(unsent_ms, tcp_user_timeout - 1);
	replace(&settings[USER_TIMEOUT_MS], watches ? unsent_ms : tcp_user_timeout);
	if (client_connection_check_interval == 0 ||
		client_connection_check_interval > BUSY_CHECK_MS)
		replace(&settings[CONNECTION_CHECK], BUSY_CHECK_MS);
#ifdef WATCHES_SOCKET

	/*
	 * The timer has to look between the first keepalive without an answer and
	 * the last.
	 */
	idle_timeout = Min(keepalives_take() * 1000, INT_MAX);
	if (watches && settings[USER_TIMEOUT_MS].is_ours &&
		watch_timer != MAX_TIMEOUTS)
		set_watch(1000 * Min(Max(pq_getkeepalivesinterval(MyProcPort), 1),
							 step_s));
#endif

	/*
	 * The server arms this timer only when a command begins, and ours has
	 * begun.
	 */
	if (client_connection_check_interval > 0 &&
		!get_timeout_active(CLIENT_CONNECTION_CHECK_TIMEOUT))
		enable_timeout_after(CLIENT_CONNECTION_CHECK_TIMEOUT,
							 client_connection_check_interval);
}

/*
 * Make the settings fit the shortest lease for which this session stands; 0: put
 * them back, it does not stand.  Called at the end of each transaction, where
 * nothing may fail.  They are left alone while that lease is the same, and while
 * nobody else has changed them.
 */
void
le_keepalive_fit(int64 lease_duration)
{
	static int64 fitted = 0;
	static int	left[lengthof(settings)];
	bool		same;

	if (!le_dead_peer_detection || MyProcPort == NULL)
		lease_duration = 0;
	same = lease_duration == fitted;
	if (same && fitted == 0)
		return;
	for (int i = 0; i < lengthof(settings); i++)
		same &= left[i] == *settings[i].variable;
	if (same)
		return;
	restore();
	if (lease_duration > 0)
		tighten(lease_duration);
	fitted = lease_duration;
	for (int i = 0; i < lengthof(settings); i++)
		left[i] = *settings[i].variable;
}

/*
 * For how many microseconds the server keeps this session from now on if its
 * client is silent; PG_INT64_MAX: no such limit is known.
 */
int64
le_keepalive_lasts(void)
{
	int64		lasts = PG_INT64_MAX;
	int64		silent_s;
	int64		unsent_ms;

	if (MyProcPort == NULL)
		return lasts;
	silent_s = keepalives_take();
	unsent_ms = pq_gettcpusertimeout(MyProcPort);
	if (silent_s > 0)
		lasts = silent_s * USECS_PER_SEC;
	if (unsent_ms > 0)
		lasts = Min(lasts, unsent_ms * 1000);
	if (IdleSessionTimeout > 0)
		lasts = Min(lasts, IdleSessionTimeout * INT64CONST(1000));
	return lasts;
}
