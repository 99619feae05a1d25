package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// bare is what the client is compared with: the same driver, and no
// client. Whoever holds a plain advisory lock leads.
func bare(election string) {
	_, db := open(os.Getenv("PGHOST"), os.Getenv("PGPORT"), "")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	say("ready")
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		conn, err := db.Conn(ctx)
		if err != nil {
			continue
		}
		_, err = conn.ExecContext(ctx, "SELECT pg_advisory_lock(hashtext('"+election+"'))")
		if err == nil {
			say("elected", 1)
		}
		for leads := err == nil; leads; {
			asked := nanoseconds()
			if _, err = conn.ExecContext(context.Background(), "SELECT"); err == nil {
				say("working", 1, asked)
				select {
				case <-time.After(50 * time.Millisecond):
					continue
				case <-ctx.Done():
					db.Close()
					conn.Close()
					say("lost closed")
					say("closed")
					os.Exit(0)
				}
			}
			leads = false
			say("lost connection lost")
		}
		conn.Close()
	}
	say("closed")
}
