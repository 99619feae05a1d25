#include "pg_leader.h"
int show_status(const ObserveOptions *options) { return 0; }
int watch_elections(const ObserveOptions *options) { return 0; }
int yield_election(const ObserveOptions *options) { return 0; }
