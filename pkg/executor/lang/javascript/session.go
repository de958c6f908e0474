package javascript

import (
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/javascript/session"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// PlanSession plans a session in JavaScript or TypeScript. The kit moves the driver's socket, which Node can not do. Warm starts are not
// for drivers.
func PlanSession(j *language.Job) error {
	if err := ShowPackages(j); err != nil {
		return err
	}
	kit, err := j.UseKit()
	if err != nil {
		return err
	}
	node := append([]string{j.Tool.Path}, HeapFlags(j)...)
	if isAtLeast(j, [2]int{20, 11}, [2]int{21, 3}) {
		node = append(node, "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON") // the detection is intended
	}
	session.Add(j, j.Language.Name, kit, node...).OutOfMemory = OutOfMemory
	return nil
}
