package leaderelection

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestMain sees to it that no test reads the environment it runs in: what this package
// and lib/pq read of it is there only if the test itself sets it.
func TestMain(m *testing.M) {
	read := regexp.MustCompile(`^(PG|KUBERNETES_|POD_NAME$|HOSTNAME$)`)
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); read.MatchString(name) {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}
