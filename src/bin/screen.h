/*-------------------------------------------------------------------------
 *
 * screen.h
 *		What `watch` shows on a terminal: a line for each election.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SCREEN_H
#define SCREEN_H

#include "observer.h"

extern bool screen_is_possible(void);
extern void screen_begin(Connection *c);
extern void screen_note(const PGresult *events, int row, const char *since);
extern void screen_end_request(const char *election);
extern void screen_draw(void);

#endif							/* SCREEN_H */
