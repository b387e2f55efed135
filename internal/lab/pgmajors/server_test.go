package pgmajors

import (
	"cmp"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Without MAJOR in the environment, any version will do that the library
// supports.
func TestMajor(t *testing.T) {
	server := pgtest.Server(t)
	major, _, _ := strings.Cut(server.Version(), ".")
	n, err := strconv.Atoi(major)
	if err != nil || n < 13 {
		t.Errorf("version %q", server.Version())
	}
	if want := cmp.Or(os.Getenv("MAJOR"), major); major != want {
		t.Errorf("the tests get PostgreSQL %s (%s), wanted is %s: its programs cannot be used by the user that the servers run as", server.Version(), server.Source(), want)
	}
}
