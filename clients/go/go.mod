// Version 1.0.0, PostgreSQL License: see README.md.
module leader-election-postgresql

go 1.19

require github.com/lib/pq v1.10.7
