/*-------------------------------------------------------------------------
 *
 * ask.c
 *		Answers cases by reference.c, and by nothing of src: a line for each.
 *
 * For a test that compares what a server does (test/t/133_pairs.pl).  A case
 * is a line of words, in any order, with times in a unit of the caller's:
 *
 *	ID strategy=race quorum=2 initial_delay=6 preempt_delay=0 withdrawn
 *		paused=2 grace=3 hold=4 takeover_delay=5 waits=FIRST_STOOD
 *		reserved=c reserved_until=10 led=a yielding=c ordered caller=a
 *		a=session,rank=2,place=1,drained,full,not_admitted,sits_out
 *		b=detached,place=2,dead,gave_up
 *
 * What is left out is not so: nobody leads, yields or calls.  Candidates are
 * a, b and c.  A time that does not come is "never".  The answer is
 *
 *	ID elected=a kept_for=- challenger=- a=1 a.why=eligible b=0 b.why=dead
 *		alive=2 dropped=0 until=4 waiting_for=takeover delay
 *
 * where a=1 is its position (0: NULL), and waiting_for, the last word, may have
 * blanks.  A line that is not understood ends the program.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

static const char *const why_words[] = {
	[CASE_ELIGIBLE] = "eligible",
	[CASE_DEAD] = "dead",
	[CASE_DRAINED] = "drained",
	[CASE_FULL] = "full",
	[CASE_NOT_ADMITTED] = "not_admitted",
	[CASE_SITS_OUT] = "sits_out",
};

static void
refuse(const char *word)
{
	fprintf(stderr, "ask: what is \"%s\"?\n", word);
	exit(2);
}

/*
 * The value of a word, KEY=VALUE; NULL if it has another key.
 */
static const char *
value_of(const char *word, const char *key)
{
	size_t		length = strlen(key);

	if (strncmp(word, key, length) != 0 || word[length] != '=')
		return NULL;
	return word + length + 1;
}

static int
number(const char *text)
{
	char	   *end;
	long		n;

	if (strcmp(text, "never") == 0)
		return NEVER;
	n = strtol(text, &end, 10);
	if (end == text || *end != '\0')
		refuse(text);
	return (int) n;
}

/*
 * The number of a candidate: a is 0.
 */
static int
candidate(const char *name)
{
	int			i = name[0] - 'a';

	if (i < 0 || i >= MOST_CANDIDATES || name[1] != '\0')
		refuse(name);
	return i;
}

static void
be(CaseCandidate *c, const char *what)
{
	const char *value;

	if (strcmp(what, "session") == 0)
		c->detached = false;
	else if (strcmp(what, "detached") == 0)
		c->detached = true;
	else if (strcmp(what, "dead") == 0)
		c->alive = false;
	else if (strcmp(what, "drained") == 0)
		c->drained = true;
	else if (strcmp(what, "full") == 0)
		c->full = c->full_without_due = true;
	else if (strcmp(what, "not_admitted") == 0)
		c->may_stand = false;
	else if (strcmp(what, "sits_out") == 0)
		c->sits_out = c->gave_up = true;
	else if (strcmp(what, "gave_up") == 0)
		c->gave_up = true;
	else if ((value = value_of(what, "rank")) != NULL)
		c->rank = number(value);
	else if ((value = value_of(what, "place")) != NULL)
		c->place = number(value);
	else
		refuse(what);
}

/*
 * A candidate, of so many words with commas between them.
 */
static void
stand(Case *c, int i, char *words)
{
	CaseCandidate *cc = &c->candidate[i];
	char	   *rest;

	if (i >= c->candidates)
		c->candidates = i + 1;
	cc->alive = cc->may_stand = true;
	cc->weight = 1;
	for (char *what = strtok_r(words, ",", &rest); what != NULL;
		 what = strtok_r(NULL, ",", &rest))
		be(cc, what);
}

/*
 * What holds for the seat: is it a word of that?
 */
static bool
is_of_seat(Case *c, const char *word)
{
	const char *value;

	if ((value = value_of(word, "led")) != NULL)
	{
		c->led = true;
		c->leader = candidate(value);
	}
	else if ((value = value_of(word, "yielding")) != NULL)
	{
		c->yielding = true;
		c->successor = strcmp(value, "-") == 0 ? NOBODY : candidate(value);
	}
	else if (strcmp(word, "ordered") == 0)
		c->ordered = true;
	else if ((value = value_of(word, "reserved")) != NULL)
		c->successor = candidate(value);
	else if ((value = value_of(word, "reserved_until")) != NULL)
		c->reserved_until = number(value);
	else if ((value = value_of(word, "grace")) != NULL)
		c->grace_until = number(value);
	else if ((value = value_of(word, "hold")) != NULL)
	{
		c->not_before = number(value);
		c->held = true;
	}
	else if ((value = value_of(word, "takeover_delay")) != NULL)
		c->not_before = number(value);
	else if ((value = value_of(word, "waits")) != NULL)
	{
		c->waits = true;
		c->first_stood = number(value);
	}
	else
		return false;
	return true;
}

/*
 * What holds for the election: is it a word of that?
 */
static bool
is_of_election(Case *c, const char *word)
{
	const char *value;

	if ((value = value_of(word, "strategy")) != NULL)
		c->strategy = value;
	else if ((value = value_of(word, "quorum")) != NULL)
		c->quorum = number(value);
	else if ((value = value_of(word, "preempt_delay")) != NULL)
		c->preempt_delay = number(value);
	else if ((value = value_of(word, "initial_delay")) != NULL)
		c->initial_delay = number(value);
	else if (strcmp(word, "withdrawn") == 0)
		c->withdrawn = true;
	else if ((value = value_of(word, "paused")) != NULL)
	{
		c->paused = true;
		c->paused_until = number(value);
	}
	else
		return false;
	return true;
}

static void
read_word(Case *c, char *word)
{
	const char *value;

	if (is_of_election(c, word) || is_of_seat(c, word))
		return;
	if ((value = value_of(word, "caller")) != NULL)
		c->caller = candidate(value);
	else if (word[0] != '\0' && word[1] == '=')
	{
		word[1] = '\0';
		stand(c, candidate(word), word + 2);
	}
	else
		refuse(word);
}

static void
print_candidate(const char *key, int i)
{
	if (i == NOBODY)
		printf(" %s=-", key);
	else
		printf(" %s=%c", key, 'a' + i);
}

static void
answer(const char *id, const Case *c)
{
	Answer		a;
	int			alive = 0;

	reference_answer(c, &a);
	printf("%s", id);
	print_candidate("elected", a.elected);
	print_candidate("kept_for", a.kept_for);
	print_candidate("challenger", a.challenger);
	for (int i = 0; i < c->candidates; i++)
	{
		if (c->candidate[i].weight == 0)
			continue;			/* it does not stand */
		printf(" %c=%d %c.why=%s", 'a' + i, a.position[i], 'a' + i,
			   why_words[a.why_not[i]]);
		alive += c->candidate[i].alive;
	}
	printf(" alive=%d dropped=%d", alive, a.dropped);
	if (a.until == NEVER)
		printf(" until=never");
	else
		printf(" until=%d", a.until);
	printf(" waiting_for=%s\n", reference_words[a.waiting_for]);
}

int
main(void)
{
	static char line[4096];

	while (fgets(line, sizeof(line), stdin) != NULL)
	{
		Case		c;
		char	   *rest;
		char	   *id = strtok_r(line, " \n", &rest);

		if (id == NULL)
			continue;
		memset(&c, 0, sizeof(Case));
		c.strategy = "race";
		c.quorum = 1;
		c.leader = c.successor = c.caller = NOBODY;
		for (char *word = strtok_r(NULL, " \n", &rest); word != NULL;
			 word = strtok_r(NULL, " \n", &rest))
			read_word(&c, word);
		answer(id, &c);
	}
	return 0;
}
