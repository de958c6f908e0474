package sandbox

// User has the ids of a process inside the sandbox. Its ids on the host are always unprivileged.
type User struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// DefaultUser is the user of a spec that names none.
var DefaultUser = User{UID: 1000, GID: 1000}

const maxID = 65533 // 65534 is the overflow id: files of unmapped owners show it

func (u User) validate() error {
	for _, f := range []struct {
		name string
		id   int
	}{{"uid", u.UID}, {"gid", u.GID}} {
		if f.id < 1 || f.id > maxID {
			return Invalid(f.name, "%d is outside 1…%d; programs never run as root", f.id, maxID)
		}
	}
	return nil
}
