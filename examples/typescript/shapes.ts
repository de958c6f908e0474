export enum Kind {
  Circle,
  Square,
}

export type Shape = { kind: Kind.Circle; radius: number } | { kind: Kind.Square; side: number };

export function area(shape: Shape): number {
  switch (shape.kind) {
    case Kind.Circle:
      return Math.PI * shape.radius ** 2;
    case Kind.Square:
      return shape.side ** 2;
  }
}
