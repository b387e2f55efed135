package ops

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// revised is the revision of a row of checkpoints.
type revised struct {
	name     string
	revision int64
}

// revisionOf returns the revision of a consumer with these rows, its own row first and its
// units in order. The revision of one row is the row's. For several rows it is a hash of all
// names and revisions. The revision of each slot only grows, so no list of revisions occurs
// twice. A sum would not do, since a merge of units lowers the sum. The hash has 52 bits, since
// JSON parsers represent 52 bits exactly.
func revisionOf(rows []revised) int64 {
	switch len(rows) {
	case 0:
		return 0
	case 1:
		return rows[0].revision
	}
	h := sha256.New()
	for _, r := range rows {
		fmt.Fprintf(h, "%q %d\n", r.name, r.revision)
	}
	return int64(binary.BigEndian.Uint64(h.Sum(nil)) >> 12)
}
