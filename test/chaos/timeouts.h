/*-------------------------------------------------------------------------
 *
 * timeouts.h
 *		Timeouts that clients of the chaos run set for their own sessions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TIMEOUTS_H
#define TIMEOUTS_H

#include <stdbool.h>

extern bool pressed(void);
extern const char *set_timeouts(bool any, int server_version);

#endif							/* TIMEOUTS_H */
