#include "pg_leader.h"
int show_history(const ObserveOptions *options) { return 0; }
