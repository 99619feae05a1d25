/*-------------------------------------------------------------------------
 *
 * log.h
 *		What candidates and observers of the chaos run write down, and when.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_H
#define LOG_H

#include <stdbool.h>
#include <stdint.h>

extern int64_t now_us(void);
extern void pause_ms(int ms);
extern bool open_log(const char *path);
extern void note(const char *format,...)
			__attribute__((format(printf, 1, 2)));

#endif							/* LOG_H */
