package postgres

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// checkMetadata accepts exactly the metadata that jsonb accepts.
func TestCheckMetadataAgreesWithJsonb(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).DB
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{`\u0000`, `\uD83D`, `\uDE00`, `\ud83d\ude00`, `\u00e9`, `\u`, `\\`, `\"`, `\n`, `\x`, `\`, `"`, `u0000`,
			`[`, `]`, `{`, `}`, `,`, `:`, `null`, `true`, `1`, `-0.5e3`, ` `, "\n", "\x00", "\x01", "\xff", "é"}),
		rapid.StringN(0, 3, -1))
	rapid.Check(t, func(t *rapid.T) {
		for range 20 {
			var m string
			for _, p := range rapid.SliceOfN(piece, 0, 6).Draw(t, "pieces") {
				m += p
			}
			if rapid.IntRange(0, 3).Draw(t, "bare") > 0 {
				m = `"` + m + `"`
			}
			if m == "" {
				continue // stored as NULL
			}
			_, err := db.Exec(`SELECT $1::text::jsonb`, m)
			var refused *pgconn.PgError
			if err != nil && !errors.As(err, &refused) {
				t.Fatal(err)
			}
			if got := checkMetadata([]byte(m)); (got == nil) != (err == nil) {
				t.Fatalf("%q: %v, but the server: %v", m, got, err)
			}
		}
	})
}
