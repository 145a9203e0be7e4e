/* The types of the elements in JSX: `import type {} from "@midrun/elements/react"`. React 19 or newer. */
import type { DetailedHTMLProps, HTMLAttributes } from "react";
import type { MidrunElements, MidrunEvents } from "./midrun.js";

type Listeners = {
  [Name in keyof MidrunEvents as `on${Name}`]?: (event: CustomEvent<MidrunEvents[Name]>) => void;
};
type Attributes<Element> = Partial<Pick<Element, keyof Element & ("run" | "base" | "token" | "docked" | "globalKeys")>>;
type Props<Element> = DetailedHTMLProps<HTMLAttributes<Element>, Element> & Attributes<Element> & Listeners;
type Tags = { [Tag in keyof MidrunElements]: Props<MidrunElements[Tag]> };

declare module "react" {
  namespace JSX {
    interface IntrinsicElements extends Tags {}
  }
}
