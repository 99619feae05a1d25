/*-------------------------------------------------------------------------
 *
 * keepalive.c
 *		Noticing that this session's client is gone.
 *
 * A host that vanishes sends no FIN: with the kernel's defaults its session,
 * and so its leadership, would go on for hours.  And a backend that runs a
 * query does not look at its socket.  From a session's first candidacy to its
 * last, the settings below are made tighter, unless they are tighter already,
 * so that the session of a dead peer ends within a lease (3 s at least), and
 * so that one lost probe ends nothing.
 *
 * Invariant: what the session sets itself stays, then and afterwards; only the
 * value that RESET would give is replaced, and put back in the end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "leader_election.h"
#include "miscadmin.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/timeout.h"

#define SHORTEST_MS		3000	/* the kernel counts keepalives in seconds */
#define BUSY_CHECK_MS	200		/* how often a busy backend looks at its socket */
#define PROBES			2

typedef struct Setting
{
	const char *name;
	int		   *variable;
	bool		is_ours;
	int			reset_value;	/* what it was before */
} Setting;

static Setting settings[] = {
	{"tcp_keepalives_idle", &tcp_keepalives_idle},
	{"tcp_keepalives_interval", &tcp_keepalives_interval},
	{"tcp_keepalives_count", &tcp_keepalives_count},
	{"tcp_user_timeout", &tcp_user_timeout},
	{"client_connection_check_interval", &client_connection_check_interval},
};

static void
assign(Setting *setting, int value)
{
	char		text[32];

	/*
	 * PGC_S_OVERRIDE is not transactional, gives way to what the session has
	 * SET, and becomes what RESET gives, so that RESET ALL leaves it
	 * alone.  What the platform or the kind of socket does not have is not an
	 * error.
	 */
	snprintf(text, sizeof(text), "%d", value);
	(void) set_config_option(setting->name, text, PGC_USERSET, PGC_S_OVERRIDE,
							 GUC_ACTION_SET, true, DEBUG1, false);
}

/*
 * Make the session notice a dead client within that lease.
 */
void
le_keepalive_tighten(int64 lease_duration)
{
	int			limit_ms = Min(Max(lease_duration / 1000, SHORTEST_MS), INT_MAX);
	int			step_s = limit_ms / 1000 / (PROBES + 1);
	int			wanted[] = {step_s, step_s, PROBES, limit_ms, BUSY_CHECK_MS};

	StaticAssertStmt(lengthof(wanted) == lengthof(settings),
					 "one value for each setting");

	if (!le_dead_peer_detection || MyProcPort == NULL)
		return;
	for (int i = 0; i < lengthof(settings); i++)
	{
		Setting    *s = &settings[i];
		int			now = *s->variable;

		if (now > 0 && now <= wanted[i])
			continue;
		if (!s->is_ours)
			s->reset_value = atoi(GetConfigOptionResetString(s->name));
		assign(s, wanted[i]);
		s->is_ours = *s->variable == wanted[i];
		if (!s->is_ours)
			assign(s, s->reset_value);
	}

	/* The server arms this one only when a command begins: this one has. */
	if (client_connection_check_interval > 0 &&
		!get_timeout_active(CLIENT_CONNECTION_CHECK_TIMEOUT))
		enable_timeout_after(CLIENT_CONNECTION_CHECK_TIMEOUT,
							 client_connection_check_interval);
}

/*
 * After the last candidacy.
 */
void
le_keepalive_restore(void)
{
	for (int i = 0; i < lengthof(settings); i++)
	{
		Setting    *s = &settings[i];

		if (s->is_ours)
			assign(s, s->reset_value);
		s->is_ours = false;
	}
}
