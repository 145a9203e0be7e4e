"""The stored journals: the stories they tell, and the facts they must go on meaning."""
