# The faults that hit a whole server, its tables, or the network: also what nobody
# attacks. Some rounds are without them, and calm elections are to be calm then.

package Wide;

use strict;
use warnings;

use Exporter qw(import);

our @EXPORT = qw($WIDE);

our $WIDE = qr/^(?:
	(?:cut|reset|slow|kill)\s(?:clients|replication|backend|worker|postmaster)
	|.*restart|restart\s.*|standby\sforgotten|change\snames.*|names\sof\snobody|cascade|stop\sstartup.*|failover.*|full\sdisk|cancel\swaits.*|stop\swal.*
	|lock\stable|maintenance|set\sclock
	|full\slock\stable|all\sworker\sslots\staken|slow\sdisk|maintenance\sof\sall\stables)$/x;

1;
