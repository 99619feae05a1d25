/*-------------------------------------------------------------------------
 *
 * diagnose_standing.c
 *		What diagnose() says of the candidates, and of the seats of a group.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "utils/builtins.h"

/* The vacant seats of a group that wait for the same */
typedef struct VacantSeats
{
	char	   *waiting_for;
	List	   *names;
} VacantSeats;

/*
 * A leader needs no quorum, but whoever follows does.
 */
void
le_diagnose_quorum(Diagnosis *d)
{
	if (!d->led || d->turnout.live >= d->election->quorum)
		return;
	le_diagnose_say(d, SEVERITY_WARNING,
					psprintf("%d of the %d candidates that are needed (quorum) are alive: if the leader is lost, nobody can follow.",
							 d->turnout.live, d->election->quorum),
					le_diagnose_fill(d, le_obstacles[OBSTACLE_QUORUM].remedy));
}

/*
 * A row for those of whom the same is so, if there are any.
 */
static void
say_of(Diagnosis *d, List *names, Severity severity, const char *what,
	   const char *remedy)
{
	if (names != NIL)
		le_diagnose_say(d, severity,
						psprintf("%s: %s.", what, le_diagnose_names(names)),
						remedy);
}

static void
say_drained(Diagnosis *d, const char *name, const Drain *drain)
{
	bool		of_all = drain->election[0] == '\0';
	char	   *drained = quote_literal_cstr(drain->candidate);
	char	   *how = of_all ?
		psprintf("run as a superuser: SELECT leader_election.undrain_candidate(%s);",
				 drained) :
		le_diagnose_owner_runs(d, psprintf("undrain_candidate(%s, %s)",
										   drained, d->literal));

	le_diagnose_say(d, SEVERITY_NOTICE,
					psprintf("Candidate %s is drained%s by role %s since %s (%s).",
							 le_quote(name), of_all ? " in all elections" : "",
							 le_quote(drain->by), le_diagnose_time(drain->at),
							 drain->reason != NULL ? le_quote(drain->reason) :
							 "no reason was given"),
					psprintf("When what it is for is done, %s", how));
}

static void
say_all_drained(Diagnosis *d, List *names)
{
	foreach_ptr(const char, name, names)
	{
		const Drain *drain = le_drain_find(d->name, name);

		if (drain == NULL)
			continue;			/* not any more */
		if (foreach_current_index(name) == 10)
		{
			say_of(d, names, SEVERITY_NOTICE, "These candidates are drained",
				   le_diagnose_fill(d, "See what drains them: SELECT * FROM leader_election.drain WHERE election IN ('', {election});"));
			break;
		}
		say_drained(d, name, drain);
	}
}

/*
 * Roles that the settings name and that are not there: dropped or, after a
 * restore, never made.
 */
void
le_diagnose_roles(Diagnosis *d)
{
	const Role *owner = d->election != NULL ? &d->election->owner :
		d->group != NULL ? &d->group->owner : NULL;

	if (d->election != NULL && le_election_is_restricted(d->election) &&
		!le_role_exists(&d->election->candidate_role))
		le_diagnose_say(d, d->led ? SEVERITY_WARNING : SEVERITY_ERROR,
						psprintf("Nobody can stand: candidate_role %s %s.",
								 le_quote(d->election->candidate_role.name),
								 le_role_missing(&d->election->candidate_role)),
						le_diagnose_fill(d, "For another one (or '', so that any role may stand), {alter candidate_role => 'ROLE'}"));
	if (owner != NULL && !le_role_exists(owner))
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("The owner, role %s, %s: only superusers can alter or drop this, or ask its leaders to yield.",
								 le_quote(owner->name), le_role_missing(owner)),
						le_diagnose_fill(d, "To give it another owner, {alter owner => 'ROLE'}"));
}

/* Why a candidate cannot be elected */
typedef enum Bar
{
	BAR_DRAINED,
	BAR_ROLE,
	BAR_CAP,
	BAR_SITS_OUT,
	BAR_ENDED,
	BAR_SILENT,
	BAR_COUNT
} Bar;

/*
 * The names of the candidates that cannot be elected.  A leader is none of
 * these, unless it could not be elected again.
 */
static void
sort_candidates(Diagnosis *d, List **names)
{
	for (int i = 0; i < d->view->ncontenders; i++)
	{
		Contender  *c = &d->view->contenders[i];
		bool		leads = d->led && c->holds;
		bool		alive = leads || le_contender_is(d->view, c, TRAIT_ALIVE);
		bool		stands = alive && !leads;
		bool		applies[BAR_COUNT] = {
			[BAR_DRAINED] = alive && le_contender_is(d->view, c, TRAIT_DRAINED),
			[BAR_ROLE] = alive && !le_contender_is(d->view, c, TRAIT_ADMITTED),
			[BAR_CAP] = stands && le_contender_is(d->view, c, TRAIT_FULL),
			[BAR_SITS_OUT] = stands && c->sits_out,
			[BAR_ENDED] = !alive && !c->detached,
			[BAR_SILENT] = !alive && c->detached,
		};

		for (Bar b = 0; b < BAR_COUNT; b++)
		{
			if (applies[b])
				names[b] = lappend(names[b], c->candidate->candidate);
		}
	}
}

/*
 * Candidates that cannot be elected, and why.
 */
void
le_diagnose_candidates(Diagnosis *d)
{
	List	   *names[BAR_COUNT] = {NIL};

	sort_candidates(d, names);
	say_all_drained(d, names[BAR_DRAINED]);
	say_of(d, names[BAR_ROLE], SEVERITY_WARNING,
		   psprintf("Candidates whose roles are not in candidate_role %s, and that are not elected",
					le_quote(le_role_name(&d->election->candidate_role))),
		   le_role_exists(&d->election->candidate_role) ?
		   le_diagnose_fill(d, "Grant them that role, or {alter candidate_role => ''}") :
		   "See the row on that role.");
	say_of(d, names[BAR_CAP], SEVERITY_NOTICE,
		   psprintf("Candidates that have as many other seats of group %s as they may (%d)",
					d->group != NULL ? le_quote(d->group->name) : "",
					d->group != NULL ? d->group->max_per_candidate : 0),
		   "Nothing is to be done while others can lead. alter_group(..., max_per_candidate => ...) lets them have more.");
	say_of(d, names[BAR_SITS_OUT], SEVERITY_NOTICE,
		   "Candidates that gave up, and sit out until another one has led",
		   "Nothing is to be done while others can lead. Else have another candidate stand, or one of these call join(), campaign() or acquire().");
	say_of(d, names[BAR_ENDED], SEVERITY_NOTICE,
		   "Candidates whose sessions have ended, and that the worker removes",
		   "If programs should run under these names, look into their logs.");
	say_of(d, names[BAR_SILENT], SEVERITY_NOTICE,
		   "Detached candidates that have not called for longer than a lease, and count as dead",
		   "If programs should run under these names, look into their logs: they have to call acquire() several times per lease.");
}

/*
 * The seats of the group for which no live candidate stands.
 */
static List *
find_seats_without(const Diagnosis *d)
{
	List	   *seats = NIL;

	for (int n = 1; n <= d->group->seats; n++)
	{
		char	   *seat = le_seat_name(d->group->name, n);
		bool		stands = false;

		foreach_ptr(Candidate, c, le_candidates_read(seat))
			stands = stands || le_candidate_alive(c);
		if (!stands)
			seats = lappend(seats, seat);
	}
	return seats;
}

/*
 * Seats of the group that nobody stands for: candidates that came before a
 * seat was added do not stand for it by themselves.
 */
void
le_diagnose_seats(Diagnosis *d)
{
	if (d->group == NULL)
		return;
	say_of(d, find_seats_without(d), SEVERITY_WARNING,
		   psprintf("Nobody stands for these seats of group %s",
					le_quote(d->group->name)),
		   "Have the candidates call join_group() or acquire_any() again (pg_leader does so by itself), or start more of them.");
}

/*
 * Note that a seat is vacant, beside those that wait for the same.
 */
static List *
add_vacant(List *vacant, char *seat, const char *waiting_for)
{
	VacantSeats *new;

	foreach_ptr(VacantSeats, v, vacant)
	{
		if (strcmp(v->waiting_for, waiting_for) == 0)
		{
			v->names = lappend(v->names, seat);
			return vacant;
		}
	}
	new = palloc(sizeof(VacantSeats));
	new->waiting_for = pstrdup(waiting_for);
	new->names = list_make1(seat);
	return lappend(vacant, new);
}

/*
 * How many seats of the group are led?  *vacant becomes a list of VacantSeats,
 * and the turnout tells how many stand in all.
 */
static int
count_led(Diagnosis *d, List **vacant)
{
	int			led = 0;

	*vacant = NIL;
	for (int n = 1; n <= d->group->seats; n++)
	{
		char	   *seat = le_seat_name(d->group->name, n);
		Election   *election = le_election_read(seat);
		Lease	   *lease = le_lease_read(seat, NULL);
		bool		seat_is_led = le_observed_led(lease);
		Turnout		turnout;
		Vacancy		vacancy;
		const char *why;

		if (election == NULL || lease == NULL)
			continue;
		(void) le_observed_look(election, lease, seat_is_led, NULL,
								&turnout, &vacancy);
		d->turnout.live += turnout.live;
		led += seat_is_led;
		if (seat_is_led)
			continue;
		why = le_observed_waiting_for(election, &turnout, &vacancy);
		*vacant = add_vacant(*vacant, seat, why != NULL ? why :
							 le_obstacles[OBSTACLE_NONE].word);
	}
	return led;
}

/*
 * The name is that of a group.
 */
void
le_diagnose_group(Diagnosis *d)
{
	List	   *vacant;
	int			led;

	if (d->election != NULL || d->group == NULL)
		return;
	led = count_led(d, &vacant);
	le_diagnose_say(d, SEVERITY_OK,
					psprintf("Seats of group %s: %d. Led: %d. A candidate may have: %d.",
							 d->quoted, d->group->seats, led,
							 d->group->max_per_candidate),
					"");
	foreach_ptr(const VacantSeats, v, vacant)
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("Nobody leads %s: waiting for %s.",
								 le_diagnose_names(v->names), le_quote(v->waiting_for)),
						psprintf("Run: SELECT * FROM leader_election.diagnose(%s);",
								 quote_literal_cstr(linitial(v->names))));
	le_diagnose_seats(d);
}
