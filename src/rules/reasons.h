/*-------------------------------------------------------------------------
 *
 * reasons.h
 *		Why a term ends: the word for it, and what people are told of it.
 *
 * history, metrics and diagnose() read the same table.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_REASONS_H
#define LE_REASONS_H

/* What a finding of diagnose() means for who reads it */
typedef enum Severity
{
	SEVERITY_OK,				/* all is well: the only row */
	SEVERITY_NOTICE,			/* as it was ordered, or over by itself */
	SEVERITY_WARNING,			/* is wrong, and will do harm if it stays */
	SEVERITY_ERROR				/* nobody leads, or can take over, until
								 * somebody acts */
} Severity;

typedef enum Reason
{
	REASON_EXPIRED,
	REASON_SESSION_ENDED,
	REASON_SESSION_RESET,
	REASON_FAILOVER,
	REASON_YIELDED,
	REASON_TRANSFERRED,
	REASON_RESIGNED,
	REASON_LEFT,
	REASON_DROPPED,
	REASON_OTHER,				/* another version's, or written by hand */
	REASON_COUNT
} Reason;

typedef struct ReasonText
{
	const char *word;			/* in history, and for listeners */
	bool		lost;			/* neither the leader's own call, nor an
								 * operator's, has ended the term */
	Severity	severity;		/* of many such ends */
	const char *meaning;		/* ends a sentence */
	const char *remedy;			/* for many such ends; {election}: as SQL */
} ReasonText;

extern const ReasonText le_reasons[REASON_COUNT];

extern Reason le_reason_find(const char *word);

#endif							/* LE_REASONS_H */
