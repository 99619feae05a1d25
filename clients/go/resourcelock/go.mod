module leader-election-postgresql/resourcelock

go 1.19

require (
	github.com/lib/pq v1.10.7
	k8s.io/apimachinery v0.20.2
	k8s.io/client-go v0.20.2
)
