package typescript

import "encoding/json"

// packageType is the type that a package.json declares: "module", or another.
func packageType(text []byte) string {
	var p struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(text, &p) // Node refuses a malformed one
	return p.Type
}
