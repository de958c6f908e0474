import { area, Kind, type Shape } from "./shapes";

const shapes: Shape[] = [
  { kind: Kind.Circle, radius: 2 },
  { kind: Kind.Square, side: 3 },
];

for (const shape of shapes) {
  console.log(`${Kind[shape.kind]}: ${area(shape).toFixed(2)}`);
}
