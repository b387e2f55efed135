package incarnation

import (
	"context"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// For a token of any age, a younger heartbeat is detected as younger, and an older heartbeat
// never is. Only while the token's age begins again may the answer for a younger heartbeat be
// false, until the next heartbeat.
func TestWrittenAfterATokenOfAnyAge(t *testing.T) {
	t.Parallel()
	const epoch = 1 << 32
	db := pgtest.Empty(t).DB
	query := `
WITH now AS MATERIALIZED (SELECT txid_current() AS xid),
given AS MATERIALIZED (SELECT ((xid - $1::bigint) & 4294967295) AS beat, ((xid - $2::bigint) & 4294967295) AS token FROM now)
SELECT beat > 2 AND token > 2, ` + writtenAfter("beat::text::xid", "token::text::xid") + ` FROM given`
	rapid.Check(t, func(t *rapid.T) {
		beat := rapid.Int64Range(0, 1_000_000).Draw(t, "age of the heartbeat")
		token := rapid.OneOf(
			rapid.Int64Range(0, 2_000_000), rapid.Int64Range(0, 3*epoch),
			rapid.Map(rapid.Int64Range(-2_000_000, 2_000_000), func(d int64) int64 { return epoch/2 + d }),
			rapid.Map(rapid.Int64Range(-2_000_000, 2_000_000), func(d int64) int64 { return epoch + d }),
		).Draw(t, "age of the token")
		var normal, after bool
		if err := db.QueryRowContext(context.Background(), query, beat, token).Scan(&normal, &after); err != nil {
			t.Fatal(err)
		}
		switch {
		case !normal: // no transaction has such an id
		case after && beat >= token:
			t.Error("an older heartbeat was detected as younger")
		case !after && beat < token && token%epoch > beat:
			t.Error("a younger heartbeat was not detected as younger")
		}
	})
}
