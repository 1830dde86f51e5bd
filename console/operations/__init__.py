"""Operations that the commands and the web console share. These modules import neither click nor Flask nor rich."""
